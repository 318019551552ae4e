package apogee.interop;

import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** An ordered consumer in a process of its own: prints what it gets, ends cleanly when its standard input does. */
public final class OrderedChild {
    public static void main(String[] args) throws Exception {
        DefaultMQPushConsumer c = new DefaultMQPushConsumer(args[1]);
        c.setNamesrvAddr(args[0]);
        c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        c.subscribe(args[2], "*");
        AtomicLong n = new AtomicLong();
        c.registerMessageListener((MessageListenerOrderly) (ms, ctx) -> {
            for (MessageExt m : ms) {
                System.out.println("got " + m.getQueueId() + " " + m.getQueueOffset() + " " + new String(m.getBody()));
                n.incrementAndGet();
            }
            System.out.flush();
            return ConsumeOrderlyStatus.SUCCESS;
        });
        c.start();
        System.out.println("started");
        while (System.in.read() >= 0) {
            n.get();
        }
        c.shutdown();
        System.exit(0);
    }
}
