package apogee.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** A running apogee server on free ports with a folder of its own. */
final class Server implements AutoCloseable {
    private static final Pattern READY = Pattern.compile("namesrv=(\\S+) broker=(\\S+)");
    final Path dir;
    String names;
    String broker;
    private Process process;

    /** With -Dinterop.namesrv=ADDR the server is one that runs already, of whichever make. */
    private static final String RUNNING = System.getProperty("interop.namesrv", "");

    Server(String... args) throws Exception {
        if (!RUNNING.isEmpty() && !RUNNING.startsWith("$")) {
            dir = null;
            names = RUNNING;
            return;
        }
        dir = Files.createTempDirectory("apogee-interop");
        start(args);
    }

    void start(String... args) throws Exception {
        List<String> cmd = new ArrayList<>(List.of(System.getProperty("apogee.bin"), "server", "--data", dir.toString(), "--log-level", "warn", "--http-port", "0"));
        List<String> given = List.of(args);
        for (String port : List.of("--namesrv-port", "--broker-port")) {
            if (!given.contains(port)) {
                cmd.addAll(List.of(port, "0"));
            }
        }
        cmd.addAll(given);
        process = new ProcessBuilder(cmd).redirectError(ProcessBuilder.Redirect.INHERIT).start();
        BufferedReader out = new BufferedReader(new InputStreamReader(process.getInputStream()));
        String line = CompletableFuture.supplyAsync(() -> {
            try {
                return out.readLine();
            } catch (java.io.IOException e) {
                return e.toString();
            }
        }).get(20, TimeUnit.SECONDS);
        Matcher m = READY.matcher(String.valueOf(line));
        if (!m.find()) {
            throw new IllegalStateException("server said: " + line);
        }
        names = m.group(1);
        broker = m.group(2);
    }

    static String port(String addr) {
        return addr.substring(addr.lastIndexOf(':') + 1);
    }

    void stop() throws Exception {
        process.destroy();
        process.waitFor(30, TimeUnit.SECONDS);
    }

    @Override
    public void close() throws Exception {
        if (dir == null) {
            return;
        }
        stop();
        try (var files = Files.walk(dir)) {
            files.sorted(java.util.Comparator.reverseOrder()).forEach(p -> p.toFile().delete());
        }
    }
}
