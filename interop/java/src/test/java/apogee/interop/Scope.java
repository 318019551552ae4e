package apogee.interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.Assumptions;

/**
 * What one case uses: names of its own, clients and servers. Everything it opens ends with it, the newest first; client,
 * child process or server that was ended before is left alone.
 */
final class Scope implements AutoCloseable {
    /** Milliseconds that the client waits for an answer: its 3 s are little when many JVMs start on two cores. */
    static final int API_TIMEOUT = 15_000;

    private static final AtomicInteger COUNT = new AtomicInteger();
    private static Server shared;

    private final String name;
    private final Deque<AutoCloseable> open = new ArrayDeque<>();
    private final StringBuffer note = new StringBuffer();

    Scope(String name) {
        this.name = name;
    }

    interface Setup<T> {
        void on(T client) throws Exception;
    }

    /** The server that the cases without special settings share; it ends with the process. */
    static synchronized Server server() throws Exception {
        if (shared == null) {
            shared = new Server();
            Runtime.getRuntime().addShutdownHook(new Thread(() -> {
                try {
                    shared.close();
                } catch (Exception e) {
                    System.err.println("shared server: " + e);
                }
            }));
        }
        return shared;
    }

    /** A server with these settings for this case alone. */
    Server ownServer(String... settings) throws Exception {
        Assumptions.assumeFalse(Server.isGiven(), "needs a server with settings of its own");
        return closing(new Server(settings));
    }

    <T extends AutoCloseable> T closing(T c) {
        synchronized (open) {
            open.push(c);
        }
        return c;
    }

    /** A name that no other case and no other run of the suite uses. */
    String unique(String what) {
        return what + "_" + name + "_" + ProcessHandle.current().pid() + "_" + COUNT.incrementAndGet();
    }

    String topic() {
        return unique("T");
    }

    String group() {
        return unique("G");
    }

    /** Adds to the note in the case's line of the table. */
    void note(String format, Object... args) {
        note.append(note.length() == 0 ? "" : "; ").append(String.format(format, args));
    }

    String note() {
        return note.toString();
    }

    static Message message(String topic, String tag, String body) {
        return new Message(topic, tag, body.getBytes(StandardCharsets.UTF_8));
    }

    /** n bodies: prefix0, prefix1, … */
    static List<String> bodies(String prefix, int n) {
        List<String> out = new ArrayList<>();
        for (int i = 0; i < n; i++) {
            out.add(prefix + i);
        }
        return out;
    }

    static void sendAll(DefaultMQProducer p, String topic, List<String> bodies) throws Exception {
        for (String b : bodies) {
            p.send(message(topic, "", b));
        }
    }

    DefaultMQProducer producer() throws Exception {
        return producer(server().namesrv());
    }

    DefaultMQProducer producer(String namesrv) throws Exception {
        return producer(namesrv, p -> { });
    }

    DefaultMQProducer producer(String namesrv, Setup<DefaultMQProducer> setup) throws Exception {
        DefaultMQProducer p = new DefaultMQProducer(unique("P"));
        p.setNamesrvAddr(namesrv);
        p.setInstanceName(unique("I"));
        p.setSendMsgTimeout(10_000); // the machine is busy with other cases
        p.setPollNameServerInterval(1_000);
        p.setMqClientApiTimeout(API_TIMEOUT);
        setup.on(p);
        p.start();
        closing(p::shutdown);
        return p;
    }

    /** A topic made before anyone uses it. */
    String topic(DefaultMQProducer p, int queues) throws Exception {
        String topic = topic();
        Client.createTopic(p, topic, queues);
        Await.until(60, "route of " + topic, () -> {
            try {
                return p.fetchPublishMessageQueues(topic).size() == queues;
            } catch (org.apache.rocketmq.client.exception.MQClientException e) {
                return false;
            }
        });
        return topic;
    }

    /** A push consumer that isn't started: everything from the first offset, of the shared server. */
    DefaultMQPushConsumer consumer(String namesrv, String group, String topic, String expression) throws Exception {
        DefaultMQPushConsumer c = new DefaultMQPushConsumer(group);
        c.setNamesrvAddr(namesrv);
        c.setInstanceName(unique("I"));
        c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        c.setPollNameServerInterval(1_000);
        c.setMqClientApiTimeout(API_TIMEOUT);
        c.subscribe(topic, expression);
        closing(c::shutdown);
        return c;
    }

    DefaultMQPushConsumer push(String group, String topic, MessageListenerConcurrently l) throws Exception {
        return push(server().namesrv(), group, topic, "*", l, c -> { });
    }

    DefaultMQPushConsumer push(String namesrv, String group, String topic, String expression, MessageListenerConcurrently l,
        Setup<DefaultMQPushConsumer> setup) throws Exception {
        DefaultMQPushConsumer c = consumer(namesrv, group, topic, expression);
        // wrapped, since the client takes an object that is both kinds of listener for the ordered one
        c.registerMessageListener((MessageListenerConcurrently) (ms, ctx) -> l.consumeMessage(ms, ctx));
        setup.on(c);
        c.start();
        return c;
    }

    DefaultMQPushConsumer orderly(String namesrv, String group, String topic, MessageListenerOrderly l, Setup<DefaultMQPushConsumer> setup)
        throws Exception {
        DefaultMQPushConsumer c = consumer(namesrv, group, topic, "*");
        c.registerMessageListener((MessageListenerOrderly) (ms, ctx) -> l.consumeMessage(ms, ctx));
        setup.on(c);
        c.start();
        return c;
    }

    /** A lite pull consumer that isn't started. */
    DefaultLitePullConsumer lite(String group) throws Exception {
        DefaultLitePullConsumer c = new DefaultLitePullConsumer(group);
        c.setNamesrvAddr(server().namesrv());
        c.setInstanceName(unique("I"));
        c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        c.setPollNameServerInterval(1_000);
        c.setMqClientApiTimeout(API_TIMEOUT);
        closing(c::shutdown);
        return c;
    }

    @SuppressWarnings("deprecation")
    DefaultMQPullConsumer pull(String namesrv, String group) throws Exception {
        DefaultMQPullConsumer c = new DefaultMQPullConsumer(group);
        c.setNamesrvAddr(namesrv);
        c.setInstanceName(unique("I"));
        c.setMqClientApiTimeout(API_TIMEOUT);
        closing(c::shutdown);
        return c;
    }

    /** The address of the broker that the route names. */
    static String address(DefaultMQProducer p, String brokerName) {
        return p.getDefaultMQProducerImpl().getMqClientFactory().findBrokerAddressInPublish(brokerName);
    }

    /** The queues of the topic that the consumer has at this moment. */
    static Set<MessageQueue> assigned(DefaultMQPushConsumer c, String topic) {
        return c.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream()
            .filter(q -> q.getTopic().equals(topic)).collect(Collectors.toCollection(TreeSet::new));
    }

    @Override
    public void close() throws Exception {
        Exception first = null;
        while (true) {
            AutoCloseable c;
            synchronized (open) {
                c = open.poll();
            }
            if (c == null) {
                break;
            }
            try {
                c.close();
            } catch (Exception e) {
                first = first == null ? e : first;
            }
        }
        if (first != null) {
            throw first;
        }
    }
}
