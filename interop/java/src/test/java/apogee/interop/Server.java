package apogee.interop;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Stream;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;

/**
 * A name server and a broker of the test's own, on free ports and a fresh folder: one apogee process, or two Java
 * processes when the system property {@code server} is {@code java}. The settings are RocketMQ's {@code key=value}.
 */
final class Server implements AutoCloseable {
    private static final int READY_SECONDS = 60;
    private static final int JAVA_READY_SECONDS = 150;
    private static final AtomicInteger COUNT = new AtomicInteger();

    private final List<String> settings;
    private final Path dir;
    private final Path log;
    private final List<Process> running = new ArrayList<>();
    private String namesrv;
    private String broker;

    static boolean isJava() {
        return System.getProperty("server", "").equals("java");
    }

    /** A server that the system property {@code interop.namesrv} names runs already. */
    static boolean isGiven() {
        return !given().isEmpty();
    }

    private static String given() {
        return System.getProperty("interop.namesrv", "");
    }

    /** Where logs and the like go. */
    static Path target() {
        return Path.of(System.getProperty("interop.target", "target"));
    }

    Server(String... settings) throws Exception {
        this.settings = List.of(settings);
        if (isGiven()) {
            namesrv = given();
            dir = null;
            log = null;
            return;
        }
        dir = Files.createTempDirectory("interop");
        log = target().resolve("servers").resolve("server-" + ProcessHandle.current().pid() + "-" + COUNT.incrementAndGet() + ".log");
        Files.createDirectories(log.getParent());
        Runtime.getRuntime().addShutdownHook(new Thread(this::kill));
        start("0", "0");
    }

    /** The name server's address, IP:PORT. */
    String namesrv() {
        return namesrv;
    }

    /** The broker's address, IP:PORT; not known of a server that was given. */
    String broker() {
        if (broker == null) {
            throw new IllegalStateException("the broker of the given name server isn't known");
        }
        return broker;
    }

    static int port(String addr) {
        return Integer.parseInt(addr.substring(addr.lastIndexOf(':') + 1));
    }

    private void start(String namesrvPort, String brokerPort) throws Exception {
        if (isJava()) {
            startJava(namesrvPort, brokerPort);
        } else {
            startApogee(namesrvPort, brokerPort);
        }
    }

    private void startApogee(String namesrvPort, String brokerPort) throws Exception {
        List<String> cmd = new ArrayList<>(List.of(binary(), "server", "--data", dir.toString(), "--namesrv-port", namesrvPort, "--broker-port", brokerPort,
            "--http-port", "0"));
        for (String s : settings) {
            cmd.add("--set");
            cmd.add(s);
        }
        Map<String, String> ready = fields(run(cmd, "apogee ready", Map.of()));
        namesrv = ready.get("namesrv");
        broker = ready.get("broker");
        if (namesrv == null || broker == null) {
            throw new IllegalStateException("the ready line names no namesrv= and broker=: " + ready);
        }
    }

    private static String binary() {
        String given = System.getProperty("apogee.bin", "");
        if (given.isEmpty()) {
            given = System.getenv().getOrDefault("APOGEE_BIN", "../../bin/apogee");
        }
        return Path.of(given).toAbsolutePath().normalize().toString();
    }

    private static Map<String, String> fields(String line) {
        Map<String, String> out = new HashMap<>();
        for (String f : line.split("\\s+")) {
            int eq = f.indexOf('=');
            if (eq > 0) {
                out.put(f.substring(0, eq), f.substring(eq + 1));
            }
        }
        return out;
    }

    private void startJava(String namesrvPort, String brokerPort) throws Exception {
        String peer = System.getProperty("java.peer", "");
        if (peer.isEmpty()) {
            throw new IllegalStateException("-Dserver=java needs -Djava.peer=SCRIPT, which starts the Java servers");
        }
        String np = namesrvPort.equals("0") ? String.valueOf(freePorts(0)) : namesrvPort;
        String bp = brokerPort.equals("0") ? String.valueOf(freePorts(-2, 0, 1)) : brokerPort;
        Map<String, String> env = Map.of("HEAP", "512m");
        run(List.of(peer, "namesrv", np), "boot success", env);
        List<String> cmd = new ArrayList<>(List.of(peer, "broker", dir.toString(), bp, "127.0.0.1:" + np, "mappedFileSizeCommitLog=67108864"));
        cmd.addAll(settings);
        run(cmd, "boot success", env);
        namesrv = "127.0.0.1:" + np;
        broker = "127.0.0.1:" + bp;
        awaitRoute();
    }

    /** Java's broker says that it is up before the name server knows it. */
    private void awaitRoute() throws Exception {
        DefaultMQProducer p = new DefaultMQProducer("P_ready_" + port(namesrv));
        p.setNamesrvAddr(namesrv);
        p.setInstanceName("ready" + namesrv);
        p.start();
        try {
            Await.until(JAVA_READY_SECONDS, "the broker is registered", () -> {
                try {
                    return !p.fetchPublishMessageQueues("TBW102").isEmpty();
                } catch (MQClientException e) {
                    return false;
                }
            });
        } finally {
            p.shutdown();
        }
    }

    /** A port p of the loopback such that p plus each offset is free: a broker's VIP listener is at -2, its replication at +1. */
    private static int freePorts(int... offsets) throws IOException {
        for (int tries = 0; tries < 100; tries++) {
            List<ServerSocket> held = new ArrayList<>();
            try {
                int base;
                try (ServerSocket s = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
                    base = s.getLocalPort();
                }
                for (int o : offsets) {
                    held.add(new ServerSocket(base + o, 1, InetAddress.getLoopbackAddress()));
                }
                return base;
            } catch (IOException taken) {
                continue;
            } finally {
                for (ServerSocket s : held) {
                    s.close();
                }
            }
        }
        throw new IOException("no free ports");
    }

    /** Starts a process and waits for a line with the text; what it prints goes to the log file. */
    private String run(List<String> cmd, String text, Map<String, String> env) throws Exception {
        int limit = isJava() ? JAVA_READY_SECONDS : READY_SECONDS;
        long skip = Files.exists(log) ? Files.size(log) : 0;
        ProcessBuilder b = new ProcessBuilder(cmd).redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.appendTo(log.toFile()));
        b.environment().putAll(env);
        Process p = b.start();
        synchronized (running) {
            running.add(p);
        }
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(limit);
        while (System.nanoTime() < deadline) {
            String out = new String(Files.readAllBytes(log), java.nio.charset.StandardCharsets.UTF_8);
            for (String line : out.substring((int) Math.min(skip, out.length())).split("\n")) {
                if (line.contains(text)) {
                    return line;
                }
            }
            if (!p.isAlive()) {
                throw new IllegalStateException(cmd + " ended with " + p.exitValue() + ": " + out);
            }
            TimeUnit.MILLISECONDS.sleep(20);
        }
        throw new IllegalStateException(cmd + " not ready within " + limit + " s, see " + log);
    }

    /** A clean stop and a start with the same folder, ports and settings. */
    void restart() throws Exception {
        stop();
        start(String.valueOf(port(namesrv)), String.valueOf(port(broker)));
    }

    /** SIGTERM; the broker before its name server. Fails when a process doesn't end within 30 s. */
    void stop() throws Exception {
        synchronized (running) {
            for (int i = running.size() - 1; i >= 0; i--) {
                Process p = running.get(i);
                p.destroy();
                if (!p.waitFor(30, TimeUnit.SECONDS)) {
                    kill();
                    throw new IllegalStateException("the server didn't stop within 30 s of SIGTERM, see " + log);
                }
                if (!isJava() && p.exitValue() != 0) {
                    throw new IllegalStateException("the server ended with status " + p.exitValue() + ", see " + log);
                }
            }
            running.clear();
        }
    }

    private void kill() {
        synchronized (running) {
            running.forEach(Process::destroyForcibly);
            running.clear();
        }
    }

    @Override
    public void close() throws Exception {
        if (dir == null) {
            return;
        }
        try {
            stop();
        } finally {
            kill();
            try (Stream<Path> files = Files.walk(dir)) {
                files.sorted(Comparator.reverseOrder()).forEach(p -> p.toFile().delete());
            }
        }
    }
}
