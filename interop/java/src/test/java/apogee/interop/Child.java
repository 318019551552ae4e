package apogee.interop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** A process of ours, what it prints, and its standard input. It doesn't outlive the one that started it. */
final class Child implements AutoCloseable {
    private final Process process;
    private final Thread reader;
    private final List<String> lines = new ArrayList<>();

    /** A Java process. */
    Child(String log, String classPath, List<String> jvm, Class<?> main, String... args) throws IOException {
        this(log, java(log, classPath, jvm, main, args));
    }

    /** Any process. */
    Child(String log, List<String> command) throws IOException {
        Path err = Server.target().resolve("children").resolve(log + ".log");
        Files.createDirectories(err.getParent());
        process = new ProcessBuilder(command).redirectError(err.toFile()).start();
        Runtime.getRuntime().addShutdownHook(new Thread(process::destroyForcibly));
        reader = new Thread(this::read, log);
        reader.setDaemon(true);
        reader.start();
    }

    private static List<String> java(String log, String classPath, List<String> jvm, Class<?> main, String... args) {
        List<String> cmd = new ArrayList<>(List.of(Path.of(System.getProperty("java.home"), "bin", "java").toString(), "-Xmx256m", "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC", "-Duser.home=" + System.getProperty("user.home"), "-Drocketmq.client.logRoot=" + Server.target().resolve("logs").resolve(log),
            "-Drocketmq.client.logLevel=WARN"));
        cmd.addAll(jvm);
        cmd.addAll(List.of("-cp", classPath, main.getName()));
        cmd.addAll(List.of(args));
        return cmd;
    }

    /** The class path of the running test, client under test included. */
    static String testClassPath() {
        return System.getProperty("surefire.test.class.path", System.getProperty("java.class.path"));
    }

    private void read() {
        try (BufferedReader r = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8))) {
            for (String l = r.readLine(); l != null; l = r.readLine()) {
                synchronized (lines) {
                    lines.add(l);
                }
            }
        } catch (IOException e) {
            if (process.isAlive()) {
                throw new UncheckedIOException(e);
            }
        }
    }

    /** What it has printed so far. */
    List<String> lines() {
        synchronized (lines) {
            return new ArrayList<>(lines);
        }
    }

    void write(String line) throws IOException {
        process.getOutputStream().write((line + "\n").getBytes(StandardCharsets.UTF_8));
        process.getOutputStream().flush();
    }

    boolean isAlive() {
        return process.isAlive();
    }

    /** SIGKILL. */
    void kill() throws InterruptedException {
        process.destroyForcibly();
        await(10);
    }

    /** Waits for its end and for the rest of what it printed. */
    int await(int seconds) throws InterruptedException {
        if (!process.waitFor(seconds, TimeUnit.SECONDS)) {
            throw new IllegalStateException("process " + process.pid() + " still runs after " + seconds + " s");
        }
        reader.join(TimeUnit.SECONDS.toMillis(5));
        return process.exitValue();
    }

    @Override
    public void close() throws Exception {
        kill();
    }
}
