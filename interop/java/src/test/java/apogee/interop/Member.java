package apogee.interop;

import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.impl.consumer.ProcessQueue;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * A member of an ordered group in a process of its own: {@code NAMESRV GROUP TOPIC INSTANCE}. Prints lines that begin
 * with a word and the milliseconds of the clock:
 * <pre>
 *   got MILLIS QUEUE OFFSET BODY       a message was consumed
 *   queues MILLIS Q@ID,Q@ID…           its queues changed; ID changes when a queue was given up and taken again
 *   stopping MILLIS / stopped MILLIS   around the clean end, which a line "stop" on standard input asks for
 * </pre>
 * When standard input ends without "stop", the parent is gone and the process ends itself at once.
 */
final class Member {
    private Member() {
    }

    public static void main(String[] args) throws Exception {
        DefaultMQPushConsumer c = new DefaultMQPushConsumer(args[1]);
        c.setNamesrvAddr(args[0]);
        c.setInstanceName(args[3]);
        c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        c.setMqClientApiTimeout(Scope.API_TIMEOUT);
        c.subscribe(args[2], "*");
        c.registerMessageListener((MessageListenerOrderly) (ms, ctx) -> {
            for (MessageExt m : ms) {
                print("got", m.getQueueId() + " " + m.getQueueOffset() + " " + new String(m.getBody(), StandardCharsets.UTF_8));
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        c.start();
        Thread watch = new Thread(() -> watch(c, args[2]), "watch");
        watch.setDaemon(true);
        watch.start();
        StringBuilder line = new StringBuilder();
        for (int b = System.in.read(); b >= 0 && b != '\n'; b = System.in.read()) {
            line.append((char) b);
        }
        if (!line.toString().equals("stop")) {
            Runtime.getRuntime().halt(3);
        }
        print("stopping", "");
        c.shutdown();
        print("stopped", "");
        Runtime.getRuntime().halt(0);
    }

    private static void print(String word, String rest) {
        System.out.println(word + " " + System.currentTimeMillis() + " " + rest);
    }

    private static void watch(DefaultMQPushConsumer c, String topic) {
        String last = null;
        while (true) {
            Map<Integer, String> queues = new TreeMap<>();
            for (Map.Entry<MessageQueue, ProcessQueue> e : c.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().entrySet()) {
                if (e.getKey().getTopic().equals(topic)) {
                    queues.put(e.getKey().getQueueId(), e.getKey().getQueueId() + "@" + Integer.toHexString(System.identityHashCode(e.getValue())));
                }
            }
            String now = String.join(",", queues.values());
            if (!now.equals(last)) {
                print("queues", now);
                last = now;
            }
            try {
                Thread.sleep(10);
            } catch (InterruptedException e) {
                return;
            }
        }
    }
}
