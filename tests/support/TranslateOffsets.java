import java.time.Duration;
import java.util.Map;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.connect.mirror.RemoteClusterUtils;

/** Prints the offsets of groups on the mirror, as MirrorMaker's own utility translates them. */
public class TranslateOffsets {
    public static void main(String[] args) throws Exception {
        Map<String, Object> properties =
            Map.of("bootstrap.servers", args[0], "replication.policy.class", args[1]);
        for (int number = 3; number < args.length; number++) {
            Map<TopicPartition, OffsetAndMetadata> offsets = RemoteClusterUtils.translateOffsets(
                properties, args[2], args[number], Duration.ofSeconds(30));
            offsets.forEach((tp, at) -> System.out.println(
                String.join("\t", tp.topic(), "" + tp.partition(), "" + at.offset(), at.metadata())));
            System.out.println("group\t" + args[number]);
        }
    }
}
