package apogee.interop;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.message.MessageExt;

/** A listener that keeps what it gets, in the order of the calls, with the time of each. */
class Inbox implements MessageListenerConcurrently, MessageListenerOrderly {
    /** One delivery: the message, as the listener saw it, and when. */
    record Got(MessageExt message, String text, String topic, int times, long millis) {
    }

    private final List<Got> got = new ArrayList<>();

    @Override
    public ConsumeConcurrentlyStatus consumeMessage(List<MessageExt> ms, ConsumeConcurrentlyContext ctx) {
        add(ms);
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    }

    @Override
    public ConsumeOrderlyStatus consumeMessage(List<MessageExt> ms, ConsumeOrderlyContext ctx) {
        add(ms);
        return ConsumeOrderlyStatus.SUCCESS;
    }

    final void add(Collection<MessageExt> ms) {
        long now = System.currentTimeMillis();
        synchronized (got) {
            ms.forEach(m -> got.add(new Got(m, text(m), m.getTopic(), m.getReconsumeTimes(), now)));
        }
    }

    static String text(MessageExt m) {
        return new String(m.getBody(), StandardCharsets.UTF_8);
    }

    List<Got> all() {
        synchronized (got) {
            return new ArrayList<>(got);
        }
    }

    List<MessageExt> messages() {
        return all().stream().map(Got::message).collect(Collectors.toList());
    }

    List<String> texts() {
        return all().stream().map(Got::text).collect(Collectors.toList());
    }

    int size() {
        synchronized (got) {
            return got.size();
        }
    }

    boolean has(Predicate<Got> p) {
        return all().stream().anyMatch(p);
    }

    /** Waits until the bodies are exactly these, each once, in any order, and stays so for a moment. */
    void expect(int seconds, Collection<String> bodies) throws InterruptedException {
        Await.until(seconds, () -> "all of " + bodies.size() + " messages; got " + count(texts()), () -> size() >= bodies.size());
        Await.pause(300);
        assertEquals(count(bodies), count(texts()));
    }

    /** Each body with how often it is there. */
    static Map<String, Long> count(Collection<String> bodies) {
        return bodies.stream().collect(Collectors.groupingBy(b -> b, TreeMap::new, Collectors.counting()));
    }
}
