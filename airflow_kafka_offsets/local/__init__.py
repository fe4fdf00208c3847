"""A real Apache Kafka on this machine, from Maven jars: the default of the demo and the tests."""
