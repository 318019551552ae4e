package apogee.interop;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;

/** The few places where the client's versions differ, by reflection: one source for all of them. */
final class Client {
    static final String VERSION = System.getProperty("rocketmq.version", "unknown");

    private Client() {
    }

    /** MessageModel changed its package in 5.0. */
    static void setBroadcasting(DefaultMQPushConsumer c) {
        for (Method m : DefaultMQPushConsumer.class.getMethods()) {
            if (m.getName().equals("setMessageModel")) {
                call(m, c, constant(m.getParameterTypes()[0], "BROADCASTING"));
                return;
            }
        }
        throw new IllegalStateException("no setMessageModel");
    }

    /** Creates the topic on every broker; since 5.0 the call takes the topic's attributes as well. */
    static void createTopic(DefaultMQProducer p, String topic, int queues) {
        try {
            p.getClass().getMethod("createTopic", String.class, String.class, int.class).invoke(p, "TBW102", topic, queues);
        } catch (NoSuchMethodException e) {
            try {
                call(p.getClass().getMethod("createTopic", String.class, String.class, int.class, Map.class), p, "TBW102", topic, queues, Map.of());
            } catch (NoSuchMethodException none) {
                throw new IllegalStateException(none);
            }
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(e);
        }
    }

    /**
     * The client's ways to compress (4.x knows one), each with bits 8 to 10 of the message's system flag, which say how.
     * Bit 0, compressed, is gone when the listener sees the message.
     */
    static Map<String, Integer> compressions() {
        Map<String, Integer> out = new LinkedHashMap<>();
        out.put("ZLIB", 0x300);
        if (!VERSION.startsWith("4.")) {
            out.put("LZ4", 0x100);
            out.put("ZSTD", 0x200);
        }
        return out;
    }

    static void setCompression(DefaultMQProducer p, String type) {
        for (Method m : DefaultMQProducer.class.getMethods()) {
            if (m.getName().equals("setCompressType")) {
                call(m, p, constant(m.getParameterTypes()[0], type));
                return;
            }
        }
        if (!type.equals("ZLIB")) {
            throw new IllegalStateException("this client has no " + type);
        }
    }

    /** Heartbeats that leave the subscriptions out while they haven't changed, since 5.1. */
    static void setHeartbeatV2(Object client) {
        try {
            call(client.getClass().getMethod("setUseHeartbeatV2", boolean.class), client, true);
        } catch (NoSuchMethodException e) {
            throw new IllegalStateException(e);
        }
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private static Object constant(Class<?> type, String name) {
        return Enum.valueOf((Class) type, name);
    }

    private static void call(Method m, Object on, Object... args) {
        try {
            m.invoke(on, args);
        } catch (InvocationTargetException e) {
            throw new IllegalStateException(e.getCause());
        } catch (IllegalAccessException e) {
            throw new IllegalStateException(e);
        }
    }
}
