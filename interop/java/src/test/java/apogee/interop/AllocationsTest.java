package apogee.interop;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Random;
import java.util.Set;
import java.util.function.Function;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.Test;

/**
 * Asks the client's allocation strategies for their answers to some hundred questions. They must be those recorded in
 * internal/rebalance/testdata/allocations.jsonl, against which the Go strategies are tested; with
 * {@code -Dallocations.record=true} they are recorded there instead. Needs no server.
 *
 * <p>A line is a question with its answers, pure ASCII. Queues are {@code [topic, broker, id]}, an answer is a list of
 * indexes into the question's queues, or a text: the exception's message.
 */
class AllocationsTest {
    private static final Path RECORDED = Path.of("../../internal/rebalance/testdata/allocations.jsonl");
    private static final String GROUP = "group-a";

    private final StringBuilder out = new StringBuilder();

    @Test
    void answersAreTheRecordedOnes() throws Exception {
        sorting();
        split();
        virtualNodes();
        machineRooms();
        nearby();
        config();
        refused();
        if (Boolean.getBoolean("allocations.record")) {
            Files.createDirectories(RECORDED.getParent());
            Files.writeString(RECORDED, out);
            return;
        }
        List<String> want = Files.readAllLines(RECORDED, StandardCharsets.US_ASCII);
        assertEquals(want, Arrays.asList(out.toString().split("\n")));
    }

    /** How Java orders names: by UTF-16 code unit, so that a surrogate pair comes before U+E000 and above. */
    private void sorting() {
        List<String> odd = List.of("10.0.0.9@1", "10.0.0.10@1", "a", "B", "b", "aa", "a-", "", "\u00e9", "\u65e5\u672c", "\uff21",
            "\ue000", "\ufffd", new String(Character.toChars(0x1f600)), new String(Character.toChars(0x10ffff)), "x\uff21",
            "x" + new String(Character.toChars(0x10000)), "x\ud7ff", "%RETRY%g", "_", "~", "\u007f", "\u0080");
        List<String> clients = new ArrayList<>(odd);
        Collections.shuffle(clients, new Random(1));
        List<String> sorted = new ArrayList<>(clients);
        Collections.sort(sorted);
        out.append("{\"sort\":").append(texts(clients)).append(",\"sorted\":").append(texts(sorted)).append("}\n");

        Random r = new Random(2);
        List<MessageQueue> queues = new ArrayList<>();
        for (int i = 0; i < 60; i++) {
            queues.add(new MessageQueue(odd.get(r.nextInt(odd.size())), odd.get(r.nextInt(odd.size())), new int[] {0, 1, 2, 9, 10, 11, -1, 2147483647}[r.nextInt(8)]));
        }
        List<MessageQueue> sortedQueues = new ArrayList<>(queues);
        Collections.sort(sortedQueues);
        out.append("{\"sortQueues\":").append(queues(queues)).append(",\"sorted\":").append(queues(sortedQueues)).append("}\n");
    }

    /** The strategies without settings, over numbers of queues and clients. */
    private void split() {
        List<AllocateMessageQueueStrategy> all = List.of(new AllocateMessageQueueAveragely(), new AllocateMessageQueueAveragelyByCircle(),
            new AllocateMessageQueueConsistentHash());
        for (int n : new int[] {1, 2, 3, 4, 5, 7, 8, 10, 16, 17, 64}) {
            for (int m : new int[] {1, 2, 3, 4, 5, 8, 11, 20}) {
                for (AllocateMessageQueueStrategy s : all) {
                    ask(s, null, topic("Orders", n, "broker-a", "broker-b"), clients(m));
                }
            }
        }
        List<String> odd = new ArrayList<>(List.of("\u65e5\u672c@1", "\uff21@1", new String(Character.toChars(0x1f600)) + "@1", "plain@1"));
        Collections.sort(odd);
        for (AllocateMessageQueueStrategy s : all) {
            ask(s, null, topic("%RETRY%group-a", 1, "broker-a"), clients(3));
            ask(s, null, topic("\u8ba2\u5355", 9, "broker-\u00e9", "broker-" + new String(Character.toChars(0x1f600))), odd);
            ask(s, null, topic("Orders", 8, "broker-a"), List.of("192.168.0.1@1", "192.168.0.2@1", "192.168.0.3@1"));
            ask(s, null, topic("Orders", 8, "broker-a"), List.of("twice@1", "twice@1", "z@1")); // what a broken broker may answer
        }
    }

    private void virtualNodes() {
        for (int nodes : new int[] {1, 2, 10, 100}) {
            ask(new AllocateMessageQueueConsistentHash(nodes), "\"nodes\":" + nodes, topic("Orders", 40, "broker-a", "broker-b", "broker-c"), clients(7));
        }
    }

    private void machineRooms() {
        List<MessageQueue> queues = topic("Orders", 4, "room1@broker-a", "room1@broker-b", "room2@broker-a", "room3@broker-a", "broker-a", "room1@", "@broker-a",
            "room1@broker-a@", "room1@broker-a@x", "room1@@", "@");
        for (Set<String> rooms : List.of(set("room1"), set("room1", "room2"), set("room1", "room2", "room3"), set("room9"), set(), set(""))) {
            AllocateMessageQueueByMachineRoom s = new AllocateMessageQueueByMachineRoom();
            s.setConsumeridcs(rooms);
            for (int m : new int[] {1, 2, 3, 5, 20}) {
                ask(s, "\"rooms\":" + texts(new ArrayList<>(rooms)), queues, clients(m));
            }
        }
    }

    /** The room of a broker or a client is what comes before its first dash. */
    private void nearby() {
        Function<String, String> room = name -> name.indexOf('-') < 0 ? null : name.substring(0, name.indexOf('-'));
        AllocateMachineRoomNearby.MachineRoomResolver resolver = new AllocateMachineRoomNearby.MachineRoomResolver() {
            @Override
            public String brokerDeployIn(MessageQueue queue) {
                return room.apply(queue.getBrokerName());
            }

            @Override
            public String consumerDeployIn(String clientId) {
                return room.apply(clientId);
            }
        };
        List<List<MessageQueue>> queues = List.of(topic("Orders", 4, "room1-a", "room2-a"), topic("Orders", 5, "room1-a", "room1-b", "room2-a", "room3-a", "room4-a"),
            topic("Orders", 3, "\uff21-a", new String(Character.toChars(0x1f600)) + "-a", "room1-a"), topic("Orders", 2, "room1-a", "noroom"), topic("Orders", 2, "-a"));
        List<List<String>> clients = List.of(List.of("room1-c1", "room1-c2", "room3-c3"), List.of("room1-c1"), List.of("room2-c1", "room2-c2", "room2-c3"),
            List.of("room1-c1", "room2-c1", "room3-c1", "room4-c1", "room5-c1"), List.of("noroom", "room1-c1"));
        for (AllocateMessageQueueStrategy inner : List.of(new AllocateMessageQueueAveragely(), new AllocateMessageQueueAveragelyByCircle(),
            new AllocateMessageQueueConsistentHash())) {
            for (List<MessageQueue> q : queues) {
                for (List<String> c : clients) {
                    ask(new AllocateMachineRoomNearby(inner, resolver), "\"inner\":" + text(inner.getName()), q, c);
                }
            }
        }
    }

    private void config() {
        AllocateMessageQueueByConfig s = new AllocateMessageQueueByConfig();
        List<MessageQueue> queues = topic("Orders", 8, "broker-a");
        s.setMessageQueueList(List.of(queues.get(5), queues.get(2)));
        ask(s, "\"config\":[5,2]", queues, clients(3));
    }

    private void refused() {
        for (AllocateMessageQueueStrategy s : List.of(new AllocateMessageQueueAveragely(), new AllocateMessageQueueAveragelyByCircle(),
            new AllocateMessageQueueConsistentHash())) {
            ask(s, null, List.of(), clients(2));
            ask(s, null, topic("Orders", 2, "broker-a"), List.of());
            question(s, null, topic("Orders", 2, "broker-a"), clients(2), List.of(""));
        }
    }

    /** Asks for every client of the list and for one that isn't in it. */
    private void ask(AllocateMessageQueueStrategy s, String settings, List<MessageQueue> queues, List<String> clients) {
        Set<String> who = new LinkedHashSet<>(clients);
        who.add("absent@1");
        question(s, settings, queues, clients, new ArrayList<>(who));
    }

    private void question(AllocateMessageQueueStrategy s, String settings, List<MessageQueue> queues, List<String> clients, List<String> who) {
        out.append("{\"name\":").append(text(s.getName()));
        if (settings != null) {
            out.append(',').append(settings);
        }
        out.append(",\"queues\":").append(queues(queues)).append(",\"clients\":").append(texts(clients)).append(",\"answers\":{");
        String sep = "";
        for (String id : who) {
            out.append(sep).append(text(id)).append(':').append(answer(s, id, queues, clients));
            sep = ",";
        }
        out.append("}}\n");
    }

    private static String answer(AllocateMessageQueueStrategy s, String id, List<MessageQueue> queues, List<String> clients) {
        try {
            StringBuilder b = new StringBuilder("[");
            for (MessageQueue q : s.allocate(GROUP, id, queues, clients)) {
                b.append(b.length() > 1 ? "," : "").append(queues.indexOf(q));
            }
            return b.append(']').toString();
        } catch (IllegalArgumentException e) {
            return text(e.getMessage());
        }
    }

    private static Set<String> set(String... names) {
        return new LinkedHashSet<>(List.of(names));
    }

    /** perBroker queues on each broker, in Java's order. */
    private static List<MessageQueue> topic(String topic, int perBroker, String... brokers) {
        List<MessageQueue> all = new ArrayList<>();
        for (String broker : brokers) {
            for (int id = 0; id < perBroker; id++) {
                all.add(new MessageQueue(topic, broker, id));
            }
        }
        Collections.sort(all);
        return all;
    }

    /** m ids as the Java client makes them, in Java's order. */
    private static List<String> clients(int m) {
        List<String> all = new ArrayList<>();
        Random r = new Random(m);
        for (int i = 0; i < m; i++) {
            all.add("10.0.0." + (i + 8) + "@" + (1000 + r.nextInt(30000)) + "#" + Math.abs(r.nextLong()));
        }
        Collections.sort(all);
        return all;
    }

    private static String queues(List<MessageQueue> all) {
        StringBuilder b = new StringBuilder("[");
        for (MessageQueue q : all) {
            b.append(b.length() > 1 ? "," : "").append('[').append(text(q.getTopic())).append(',').append(text(q.getBrokerName())).append(',').append(q.getQueueId()).append(']');
        }
        return b.append(']').toString();
    }

    private static String texts(List<String> all) {
        StringBuilder b = new StringBuilder("[");
        for (String s : all) {
            b.append(b.length() > 1 ? "," : "").append(text(s));
        }
        return b.append(']').toString();
    }

    private static String text(String s) {
        StringBuilder b = new StringBuilder("\"");
        for (char c : s.toCharArray()) {
            if (c == '"' || c == '\\') {
                b.append('\\').append(c);
            } else if (c < ' ' || c > '~') {
                b.append(String.format("\\u%04x", (int) c));
            } else {
                b.append(c);
            }
        }
        return b.append('"').toString();
    }
}
