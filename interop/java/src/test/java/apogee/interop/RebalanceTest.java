package apogee.interop;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.Timeout;

/** How queues are shared out among the members of a group. */
class RebalanceTest {
    /** Waits until the members' shares, largest first, are these and together they have each queue once. */
    private static void shares(List<DefaultMQPushConsumer> members, String topic, int queues, List<Integer> want) throws Exception {
        Await.until(60, () -> "shares " + want + "; they are " + sizes(members, topic), () -> {
            Set<MessageQueue> all = new TreeSet<>();
            members.forEach(c -> all.addAll(Scope.assigned(c, topic)));
            return sizes(members, topic).equals(want) && all.size() == queues;
        });
    }

    private static List<Integer> sizes(List<DefaultMQPushConsumer> members, String topic) {
        return members.stream().map(c -> Scope.assigned(c, topic).size()).sorted((a, b) -> b - a).collect(Collectors.toList());
    }

    @Case("rebalance-1-to-5")
    @Timeout(200)
    void oneToFive(Scope t) throws Exception {
        DefaultMQProducer p = t.producer();
        String topic = t.topic(p, 4);
        String group = t.group();
        List<List<Integer>> want = List.of(List.of(4), List.of(2, 2), List.of(2, 1, 1), List.of(1, 1, 1, 1), List.of(1, 1, 1, 1, 0));
        List<DefaultMQPushConsumer> members = new ArrayList<>();
        List<Inbox> boxes = new ArrayList<>();
        List<String> sent = new ArrayList<>();
        long began = System.currentTimeMillis();
        for (int n = 1; n <= 5; n++) {
            boxes.add(new Inbox());
            members.add(t.push(group, topic, boxes.get(n - 1)));
            shares(members, topic, 4, want.get(n - 1));
            consumed(p, topic, boxes, sent, n + " members");
        }
        for (int n = 4; n >= 1; n--) {
            members.remove(n / 2).shutdown(); // not always the last one
            shares(members, topic, 4, want.get(n - 1));
            consumed(p, topic, boxes, sent, "again " + n);
        }
        t.note("nine changes of the group in %.1f s", (System.currentTimeMillis() - began) / 1e3);
    }

    /** Sends a message to each queue and waits until the group has everything it was ever sent. */
    private static void consumed(DefaultMQProducer p, String topic, List<Inbox> boxes, List<String> sent, String round) throws Exception {
        for (MessageQueue q : p.fetchPublishMessageQueues(topic)) {
            String body = round + ", queue " + q.getQueueId();
            p.send(Scope.message(topic, "", body), q);
            sent.add(body);
        }
        Await.until(60, round + ": everything consumed", () -> {
            Set<String> got = new TreeSet<>();
            boxes.forEach(b -> got.addAll(b.texts()));
            return got.containsAll(sent);
        });
    }

    /** What the strategy computes for each member from the sorted queues and client ids is what each one gets. */
    private static void allocated(Scope t, Server s, List<AllocateMessageQueueStrategy> strategies, int queues, String topic) throws Exception {
        DefaultMQProducer p = t.producer(s.namesrv());
        String group = t.group();
        List<DefaultMQPushConsumer> members = new ArrayList<>();
        Inbox in = new Inbox();
        for (AllocateMessageQueueStrategy strategy : strategies) {
            String room = members.isEmpty() ? "room1" : "room2";
            members.add(t.push(s.namesrv(), group, topic, "*", in, c -> {
                c.setAllocateMessageQueueStrategy(strategy);
                c.setInstanceName(room + "-" + t.unique("I"));
            }));
        }
        List<MessageQueue> all = new ArrayList<>(new TreeSet<>(p.fetchPublishMessageQueues(topic)));
        assertEquals(queues, all.size());
        List<String> ids = members.stream().map(DefaultMQPushConsumer::buildMQClientId).sorted().collect(Collectors.toList());
        Set<MessageQueue> shared = new TreeSet<>();
        int sum = 0;
        for (int i = 0; i < members.size(); i++) {
            DefaultMQPushConsumer c = members.get(i);
            Collection<MessageQueue> mine = strategies.get(i).allocate(group, c.buildMQClientId(), all, ids);
            Set<MessageQueue> want = new TreeSet<>(mine);
            Await.until(60, () -> strategies.get(0).getName() + ": " + want + "; has " + Scope.assigned(c, topic), () -> Scope.assigned(c, topic).equals(want));
            shared.addAll(want);
            sum += want.size();
        }
        assertEquals(new TreeSet<>(all), shared, strategies.get(0).getName() + " leaves no queue out");
        assertEquals(queues, sum, strategies.get(0).getName() + " gives no queue twice");
        List<String> sent = new ArrayList<>();
        consumed(p, topic, List.of(in), sent, strategies.get(0).getName());
    }

    @Case("strategies")
    @Timeout(200)
    void strategies(Scope t) throws Exception {
        Server s = t.ownServer("brokerName=room1@broker");
        DefaultMQProducer p = t.producer(s.namesrv());
        List<AllocateMessageQueueStrategy> simple = List.of(new AllocateMessageQueueAveragely(), new AllocateMessageQueueAveragelyByCircle(),
            new AllocateMessageQueueConsistentHash());
        for (AllocateMessageQueueStrategy one : simple) {
            allocated(t, s, List.of(one, one, one), 8, t.topic(p, 8));
        }

        AllocateMessageQueueByMachineRoom room = new AllocateMessageQueueByMachineRoom();
        room.setConsumeridcs(Set.of("room1"));
        allocated(t, s, List.of(room, room, room), 8, t.topic(p, 8));

        String configured = t.topic(p, 8);
        List<MessageQueue> queues = new ArrayList<>(new TreeSet<>(p.fetchPublishMessageQueues(configured)));
        AllocateMessageQueueByConfig five = new AllocateMessageQueueByConfig();
        five.setMessageQueueList(queues.subList(0, 5));
        AllocateMessageQueueByConfig three = new AllocateMessageQueueByConfig();
        three.setMessageQueueList(queues.subList(5, 8));
        allocated(t, s, List.of(five, three), 8, configured);

        // the first member is in the broker's room, the others are not: it gets everything
        AllocateMachineRoomNearby.MachineRoomResolver rooms = new AllocateMachineRoomNearby.MachineRoomResolver() {
            @Override
            public String brokerDeployIn(MessageQueue q) {
                return q.getBrokerName().split("@")[0];
            }

            @Override
            public String consumerDeployIn(String clientId) {
                return clientId.contains("@room1-") ? "room1" : "room2";
            }
        };
        AllocateMachineRoomNearby nearby = new AllocateMachineRoomNearby(new AllocateMessageQueueAveragely(), rooms);
        allocated(t, s, List.of(nearby, nearby, nearby), 8, t.topic(p, 8));
        t.note("AVG, AVG_BY_CIRCLE, CONSISTENT_HASH, MACHINE_ROOM, CONFIG, MACHINE_ROOM_NEARBY");
    }
}
