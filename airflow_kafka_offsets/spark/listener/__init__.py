"""A listener that makes consumer groups follow the queries of a Spark session."""
