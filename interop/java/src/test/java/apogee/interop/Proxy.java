package apogee.interop;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

/**
 * Forwards a port of one loopback address to the same port of another, unchanged, and can reset connections under both
 * ends, as a network device does that lost its state.
 */
final class Proxy implements AutoCloseable {
    private final ServerSocket listener;
    private final String target;
    private final int port;
    private final List<Pair> open = new ArrayList<>();
    private int accepted;

    Proxy(String host, String target, int port) throws IOException {
        this.target = target;
        this.port = port;
        listener = new ServerSocket(port, 50, InetAddress.getByName(host));
        daemon("accept", this::accept);
    }

    /** A client's connection and ours to the server; what the client has sent is searched for its name. */
    private final class Pair {
        final Socket client;
        final Socket server;
        private final StringBuilder said = new StringBuilder();

        Pair(Socket client) throws IOException {
            this.client = client;
            client.setTcpNoDelay(true);
            server = new Socket(target, port);
            server.setTcpNoDelay(true);
        }

        synchronized void said(byte[] b, int n) {
            if (said.length() < 1 << 20) { // a heartbeat comes early
                said.append(new String(b, 0, n, StandardCharsets.ISO_8859_1));
            }
        }

        synchronized boolean mentions(String text) {
            return said.indexOf(text) >= 0;
        }

        void reset() throws IOException {
            for (Socket s : List.of(client, server)) {
                if (!s.isClosed()) {
                    s.setSoLinger(true, 0);
                    s.close();
                }
            }
        }
    }

    private void accept() throws IOException {
        while (true) {
            Pair p = new Pair(listener.accept());
            synchronized (open) {
                open.add(p);
                accepted++;
            }
            daemon("up", () -> pump(p, p.client, p.server, true));
            daemon("down", () -> pump(p, p.server, p.client, false));
        }
    }

    private interface Work {
        void run() throws IOException;
    }

    private static void daemon(String name, Work w) {
        Thread t = new Thread(() -> {
            try {
                w.run();
            } catch (IOException e) {
                return; // one of the ends is gone
            }
        }, "proxy-" + name);
        t.setDaemon(true);
        t.start();
    }

    private void pump(Pair p, Socket from, Socket to, boolean up) throws IOException {
        try (from; to) {
            InputStream in = from.getInputStream();
            OutputStream out = to.getOutputStream();
            byte[] b = new byte[64 << 10];
            for (int n = in.read(b); n >= 0; n = in.read(b)) {
                if (up) {
                    p.said(b, n);
                }
                out.write(b, 0, n);
                out.flush();
            }
        } finally {
            synchronized (open) {
                open.remove(p);
            }
        }
    }

    /** How many connections there have been. */
    int accepted() {
        synchronized (open) {
            return accepted;
        }
    }

    /** Resets the connections on which the client has sent the text (a client id, in its heartbeats); returns how many. */
    int reset(String mentioning) throws IOException {
        List<Pair> cut = new ArrayList<>();
        synchronized (open) {
            for (Pair p : open) {
                if (p.mentions(mentioning)) {
                    cut.add(p);
                }
            }
        }
        for (Pair p : cut) {
            p.reset();
        }
        return cut.size();
    }

    @Override
    public void close() throws IOException {
        listener.close();
        reset("");
    }
}
