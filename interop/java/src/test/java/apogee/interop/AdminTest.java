package apogee.interop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.Timeout;

/** mqadmin, always of one version, whatever the client's. */
@Timeout(200)
class AdminTest {
    private static Child tools;

    /** Runs a command in the tools' process, which the first one starts, and returns what it printed. */
    private static synchronized String mqadmin(String... args) throws Exception {
        if (tools == null) {
            String own = Path.of(AdminTest.class.getProtectionDomain().getCodeSource().getLocation().toURI()).toString();
            String classPath = own + ":" + Files.readString(Server.target().resolve("mqadmin.classpath")).strip();
            tools = new Child("mqadmin", classPath, List.of("-Drocketmq.home.dir=" + Server.target()), MqAdminMain.class);
        }
        String out = once(args);
        for (int more = 2; more > 0 && out.contains("RemotingTimeoutException"); more--) {
            out = once(args); // its own 5 s are little while the machine is busy
        }
        assertFalse(out.contains("Exception"), "mqadmin " + List.of(args) + " said " + out);
        return out;
    }

    private static String once(String... args) throws Exception {
        int from = tools.lines().size();
        tools.write(String.join("\t", args) + "\t-n\t" + Scope.server().namesrv());
        Await.until(60, () -> "mqadmin " + List.of(args) + " ends; it said " + tail(from), () -> {
            if (!tools.isAlive()) {
                throw new IllegalStateException("mqadmin's process ended; it said " + tail(from));
            }
            return tools.lines().subList(from, tools.lines().size()).contains(MqAdminMain.END);
        });
        return tail(from).replace(MqAdminMain.END, "").strip();
    }

    private static String tail(int from) {
        List<String> all = tools.lines();
        return String.join("\n", all.subList(from, all.size()));
    }

    /** The rows of a table it printed, without comments, cut at white space. */
    private static List<List<String>> rows(String out, String firstColumn) {
        return out.lines().map(l -> Arrays.asList(l.strip().split("\\s+"))).filter(l -> l.get(0).equals(firstColumn)).collect(Collectors.toList());
    }

    private static String brokerName(DefaultMQProducer p, String topic) throws MQClientException {
        return p.fetchPublishMessageQueues(topic).get(0).getBrokerName();
    }

    @Case("mqadmin-updateTopic")
    void updateTopic(Scope t) throws Exception {
        String topic = t.topic();
        String out = mqadmin("updateTopic", "-b", Scope.server().broker(), "-t", topic, "-r", "3", "-w", "3");
        assertTrue(out.contains("create topic to " + Scope.server().broker() + " success"), out);
        assertTrue(out.contains("topicName=" + topic), out);
        DefaultMQProducer p = t.producer();
        assertEquals(3, p.fetchPublishMessageQueues(topic).size());
        mqadmin("updateTopic", "-b", Scope.server().broker(), "-t", topic, "-r", "6", "-w", "5");
        DefaultMQProducer fresh = t.producer();
        assertEquals(5, fresh.fetchPublishMessageQueues(topic).size(), "queues to write to");
        DefaultMQPullConsumer c = t.pull(Scope.server().namesrv(), t.group());
        c.start();
        assertEquals(6, c.fetchSubscribeMessageQueues(topic).size(), "queues to read from");

        String byCluster = t.topic();
        String cluster = mqadmin("updateTopic", "-c", "DefaultCluster", "-t", byCluster, "-r", "2", "-w", "2");
        assertTrue(cluster.contains("success"), cluster);
        assertEquals(2, t.producer().fetchPublishMessageQueues(byCluster).size());
    }

    @Case("mqadmin-clusterList")
    void clusterList(Scope t) throws Exception {
        DefaultMQProducer p = t.producer();
        String broker = brokerName(p, t.topic(p, 1));
        String out = mqadmin("clusterList");
        List<List<String>> rows = rows(out, "DefaultCluster");
        assertEquals(1, rows.size(), out);
        assertEquals(broker, rows.get(0).get(1), out);
        assertEquals("0", rows.get(0).get(2), "broker id: " + out);
        assertEquals(Scope.server().broker(), rows.get(0).get(3), out);
        assertTrue(rows.get(0).get(4).startsWith("V"), "version: " + out);
    }

    @Case("mqadmin-topicRoute")
    void topicRoute(Scope t) throws Exception {
        DefaultMQProducer p = t.producer();
        String topic = t.topic(p, 5);
        String out = mqadmin("topicRoute", "-t", topic).replaceAll("\\s", "");
        assertTrue(out.contains("\"brokerName\":\"" + brokerName(p, topic) + "\""), out);
        assertTrue(out.contains("\"" + Scope.server().broker() + "\""), out);
        assertTrue(out.contains("\"cluster\":\"DefaultCluster\""), out);
        assertTrue(out.contains("\"readQueueNums\":5"), out);
        assertTrue(out.contains("\"writeQueueNums\":5"), out);
        assertTrue(out.contains("\"perm\":6"), out);
    }

    @Case("mqadmin-topicStatus")
    void topicStatus(Scope t) throws Exception {
        DefaultMQProducer p = t.producer();
        String topic = t.topic(p, 3);
        List<MessageQueue> queues = p.fetchPublishMessageQueues(topic);
        for (MessageQueue q : queues) {
            for (int i = 0; i <= q.getQueueId(); i++) {
                p.send(Scope.message(topic, "", "m"), q);
            }
        }
        String out = mqadmin("topicStatus", "-t", topic);
        List<List<String>> rows = rows(out, brokerName(p, topic));
        assertEquals(3, rows.size(), out);
        Set<String> got = new TreeSet<>();
        for (List<String> r : rows) {
            got.add("queue " + r.get(1) + " from " + r.get(2) + " to " + r.get(3));
            assertEquals(2, r.get(4).chars().filter(c -> c == '-').count(), "a day in " + r);
        }
        assertEquals(Set.of("queue 0 from 0 to 1", "queue 1 from 0 to 2", "queue 2 from 0 to 3"), got);
    }

    @Case("mqadmin-consumerProgress")
    void consumerProgress(Scope t) throws Exception {
        DefaultMQProducer p = t.producer();
        String topic = t.topic(p, 2);
        String group = t.group();
        Scope.sendAll(p, topic, Scope.bodies("m", 10));
        Inbox in = new Inbox();
        DefaultMQPushConsumer c = t.push(group, topic, in);
        in.expect(60, Scope.bodies("m", 10));
        c.shutdown();
        Scope.sendAll(p, topic, Scope.bodies("more", 6));
        String out = mqadmin("consumerProgress", "-g", group);
        List<List<String>> rows = rows(out, topic);
        assertEquals(2, rows.size(), out);
        for (List<String> r : rows) {
            List<String> numbers = r.stream().filter(f -> f.matches("\\d+")).collect(Collectors.toList());
            assertEquals(List.of("8", "5", "3"), numbers.subList(1, 4), "broker offset, consumer offset, difference: " + out);
        }
        assertTrue(out.contains("Diff Total: 6"), out);

        String all = mqadmin("consumerProgress");
        assertTrue(all.contains(group.substring(0, 20)), "the list of groups: " + all);
    }

    @Case("mqadmin-updateSubGroup")
    @SuppressWarnings("deprecation")
    void updateSubGroup(Scope t) throws Exception {
        DefaultMQProducer p = t.producer();
        String topic = t.topic(p, 1);
        String group = t.group();
        p.send(Scope.message(topic, "", "m"));
        String out = mqadmin("updateSubGroup", "-b", Scope.server().broker(), "-g", group, "-r", "5", "-s", "false");
        assertTrue(out.contains("create subscription group to " + Scope.server().broker() + " success"), out);
        assertTrue(out.contains("groupName=" + group) && out.contains("retryMaxTimes=5"), out);
        DefaultMQPullConsumer c = t.pull(Scope.server().namesrv(), group);
        c.start();
        MessageQueue q = c.fetchSubscribeMessageQueues(topic).iterator().next();
        MQBrokerException e = assertThrows(MQBrokerException.class, () -> c.pull(q, "*", 0, 32));
        assertEquals(16, e.getResponseCode(), "the group may not consume: " + e.getErrorMessage());
        mqadmin("updateSubGroup", "-b", Scope.server().broker(), "-g", group, "-s", "true");
        assertEquals("m", Inbox.text(c.pull(q, "*", 0, 32).getMsgFoundList().get(0)));
    }

    @Case("mqadmin-deleteTopic")
    void deleteTopic(Scope t) throws Exception {
        DefaultMQProducer p = t.producer();
        String topic = t.topic(p, 2);
        Scope.sendAll(p, topic, Scope.bodies("m", 4));
        String out = mqadmin("deleteTopic", "-c", "DefaultCluster", "-t", topic);
        assertTrue(out.contains("success"), out);
        DefaultMQProducer fresh = t.producer();
        assertThrows(MQClientException.class, () -> fresh.fetchPublishMessageQueues(topic), "its route is gone");
        Client.createTopic(fresh, topic, 2);
        Await.until(60, "the topic is back", () -> {
            try {
                return fresh.fetchPublishMessageQueues(topic).size() == 2;
            } catch (MQClientException e) {
                return false;
            }
        });
        Scope.sendAll(fresh, topic, Scope.bodies("new", 4));
        Inbox in = new Inbox();
        t.push(t.group(), topic, in);
        List<String> want = new ArrayList<>(Scope.bodies("new", 4));
        in.expect(60, want); // nothing of the topic that was deleted
    }
}
