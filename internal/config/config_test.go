package config

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestOrderAndNotes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "broker.conf")
	if err := os.WriteFile(file, []byte("brokerName=from-file\nlistenPort=1234\nregionId=${x}\nflushDiskTyp=ASYNC_FLUSH\nsendMessageThreadPoolNums=4\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := New()
	if err := c.LoadFile(file); err != nil {
		t.Fatal(err)
	}
	if err := c.LoadEnv([]string{"APOGEE_LISTEN_PORT=2345", "OTHER=1", "APOGEE_BROKER_IP1=10.0.0.1"}); err != nil {
		t.Fatal(err)
	}
	if err := c.Set("brokerName", "from-flag", "--set"); err != nil {
		t.Fatal(err)
	}
	if c.Text("brokerName") != "from-flag" || c.Int("listenPort") != 2345 || c.Text("regionId") != "${x}" || c.Text("brokerIP1") != "10.0.0.1" {
		t.Errorf("%s", c.Render())
	}
	notes := strings.Join(c.Notes, "\n")
	if len(c.Notes) != 2 || !strings.Contains(notes, "did you mean flushDiskType?") ||
		!strings.Contains(notes, "sendMessageThreadPoolNums is RocketMQ's and has no meaning here: requests are served") {
		t.Errorf("notes: %s", notes)
	}
}

// TestBadValues names key, value and legal values in each error.
func TestBadValues(t *testing.T) {
	for _, c := range []struct{ key, value, want string }{
		{"listenPort", "70000", "a whole number from 3 to 65535"},
		{"listenPort", "2", "0, or a whole number from 3"},
		{"listenPort", "-1", "0, or a whole number from 3"},
		{"namesrvPort", "x", "a whole number from 0 to 65535"},
		{"flushDiskType", "MAYBE", "one of SYNC_FLUSH, ASYNC_FLUSH"},
		{"traceOn", "yes", "true or false"},
		{"maxMessageSize", "4M", "a whole number from 1024 to 12582912"},
		{"maxMessageSize", "99999999999999999999", "a whole number"},
		{"brokerIP1", "my-host", "an IP address"},
		{"bindAddress", "", "an IP address"},
		{"bindAddress", "fe80::1%eth0", "an IP address"},
		{"httpAddress", "example.com", "an IP address or localhost"},
		{"namesrvAddr", "10.0.0.1", "addresses HOST:PORT"},
		{"namesrvAddr", "10.0.0.1:0;b:1", "addresses HOST:PORT"},
		{"namesrvAddr", ";", "addresses HOST:PORT"},
		{"brokerName", "../../etc", "1 to 99 characters"},
		{"brokerName", "..", "1 to 99 characters"},
		{"brokerClusterName", "", "1 to 99 characters"},
		{"brokerClusterName", strings.Repeat("c", 100), "1 to 99 characters"},
		{"msgTraceTopicName", "a b", "1 to 127 characters"},
		{"storePathRootDir", "${user.home}/store", "not expanded"},
		{"storePathCommitLog", "/a,/b", "one path"},
		{"deleteWhen", "24", "hours from 0 to 23"},
		{"deleteWhen", "", "hours from 0 to 23"},
		{"messageDelayLevel", "1s 5x", "delays like"},
		{"messageDelayLevel", "s", "delays like"},
		{"messageDelayLevel", "2147483647d", "delays like"},
		{"messageDelayLevel", "", "delays like"},
		{"brokerId", "1", "replicas are not served"},
		{"brokerRole", "SLAVE", "replicas are not served"},
		{"regionId", "a\nlistenPort=1", "text in one line"},
		{"mappedFileSizeCommitLog", "4294967296", "a whole number from 65536 to 2147483647"},
		{"aclEnable", "true", "stand open"},
		{"authenticationEnabled", "TRUE", "stand open"},
		{"storeType", "defaultRocksDB", "RocksDB"},
		{"enableDLegerCommitLog", "true", "DLedger"},
		{"messageStorePlugIn", "a.b.C", "want no value"},
	} {
		err := New().Set(c.key, c.value, "here")
		if err == nil || !strings.HasPrefix(err.Error(), "here: "+c.key+"=") || !strings.Contains(err.Error(), "want ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s=%s: %v", c.key, c.value, err)
		}
		if !strings.Contains(c.value, "\n") && !strings.Contains(fmt.Sprint(err), "="+c.value+":") {
			t.Errorf("%s=%s: the value is not in %v", c.key, c.value, err)
		}
	}
}

func TestGoodValues(t *testing.T) {
	for _, c := range []struct{ key, value, kept string }{
		{"listenPort", " 0 ", "0"},
		{"listenPort", "3", "3"},
		{"traceOn", "False", "false"}, // Boolean.parseBoolean knows no case
		{"brokerName", "", ""},
		{"brokerName", "broker.a-1", "broker.a-1"},
		{"brokerName", "room1@broker", "room1@broker"}, // for sharing queues out by machine room
		{"brokerIP1", "2001:db8::1", "2001:db8::1"},
		{"namesrvAddr", "a:9876; 10.0.0.1:9876", "a:9876; 10.0.0.1:9876"},
		{"namesrvAddr", "[::1]:9876", "[::1]:9876"},
		{"deleteWhen", "04;16", "04;16"},
		{"messageDelayLevel", "1s  2d", "1s  2d"},
		{"aclEnable", "false", ""},
		{"configManagerVersion", "V1", ""},
	} {
		cfg := New()
		if err := cfg.Set(c.key, c.value, "here"); err != nil || cfg.Text(c.key) != c.kept || len(cfg.Notes) != 0 {
			t.Errorf("%s=%q: %q, %v, %q", c.key, c.value, cfg.Text(c.key), err, cfg.Notes)
		}
	}
}

// TestValuesThatRocketMQAdjusts are adjusted here too, and it is said.
func TestValuesThatRocketMQAdjusts(t *testing.T) {
	for _, c := range []struct{ key, value, kept string }{
		{"registerNameServerPeriod", "5000", "10000"},
		{"registerNameServerPeriod", "120000", "60000"},
		{"diskMaxUsedSpaceRatio", "99", "95"},
		{"mappedFileSizeConsumeQueue", "6000001", "6000020"},
	} {
		cfg := New()
		if err := cfg.Set(c.key, c.value, "here"); err != nil || cfg.Text(c.key) != c.kept || len(cfg.Notes) != 1 || !strings.Contains(cfg.Notes[0], c.kept) {
			t.Errorf("%s=%s: %q, %v, %q", c.key, c.value, cfg.Text(c.key), err, cfg.Notes)
		}
	}
}

func TestDefaultsAreLegal(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range Settings() {
		kept, note, err := s.read(s.Default)
		if err != nil || kept != s.Default || note != "" || s.Meaning == "" || s.Legal() == "" || seen[s.Key] {
			t.Errorf("%s: %q %q %v", s.Key, kept, note, err)
		}
		seen[s.Key] = true
	}
	// The settings that the issue of the first server names, and those whose effect others rely on.
	for _, key := range strings.Fields(`brokerName brokerClusterName brokerId brokerIP1 listenPort namesrvAddr namesrvPort bindAddress
		httpPort storePathRootDir storePathCommitLog mappedFileSizeCommitLog mappedFileSizeConsumeQueue maxHashSlotNum maxIndexNum
		messageIndexEnable maxMessageSize flushDiskType autoCreateTopicEnable autoCreateSubscriptionGroup defaultTopicQueueNums
		messageDelayLevel longPollingEnable shortPollingTimeMills flushConsumerOffsetInterval flushDelayOffsetInterval fileReservedTime
		deleteWhen lockReleaseGraceMillis rebalanceLockMaxLiveTime notifyConsumerIdsChangedEnable brokerPermission`) {
		if !seen[key] {
			t.Errorf("%s is no setting", key)
		}
	}
}

// TestEveryKeyHasOneMeaning: a key is a setting, or is refused, or has no effect for one reason.
func TestEveryKeyHasOneMeaning(t *testing.T) {
	times := map[string]int{}
	for _, s := range Settings() {
		times[s.Key]++
	}
	for k := range refusals() {
		times[k]++
	}
	for line := range strings.Lines(javaKeys) {
		if !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "= ") {
			for _, k := range strings.Fields(line) {
				times[k]++
			}
		}
	}
	for k, n := range times {
		if n != 1 {
			t.Errorf("%s stands %d times", k, n)
		}
	}
	for k, reason := range inertKeys() {
		if reason == "" {
			t.Errorf("%s has no reason", k)
		}
	}
}

// TestJavaFilesLoad loads all settings as a Java broker and a Java name server of 5.3.3 write them: none is unknown.
func TestJavaFilesLoad(t *testing.T) {
	for _, c := range []struct {
		file string
		role Role
		want map[string]string
	}{
		{"testdata/java-broker.conf", AllInOne, map[string]string{"listenPort": "30911", "namesrvPort": "9876", "brokerName": "golden-a",
			"flushDiskType": "ASYNC_FLUSH", "defaultTopicQueueNums": "2", "storePathRootDir": "/srv/rocketmq/store", "diskMaxUsedSpaceRatio": "95"}},
		{"testdata/java-namesrv.conf", NameServer, map[string]string{"namesrvPort": "39876", "listenPort": "10911", "bindAddress": "127.0.0.1",
			"kvConfigPath": "/srv/home/namesrv/namesrv/kvConfig.json"}},
	} {
		cfg := NewFor(c.role)
		if err := cfg.LoadFile(c.file); err != nil {
			t.Fatal(err)
		}
		for k, v := range c.want {
			if cfg.Text(k) != v {
				t.Errorf("%s: %s=%s, want %s", c.file, k, cfg.Text(k), v)
			}
		}
		for _, n := range cfg.Notes {
			if !strings.Contains(n, "has no meaning here: ") {
				t.Errorf("%s: %s", c.file, n)
			}
		}
		if len(cfg.Notes) < 10 {
			t.Errorf("%s: only %d notes", c.file, len(cfg.Notes))
		}
	}
}

func TestUnknownKeys(t *testing.T) {
	for key, want := range map[string]string{
		"brokername":               "did you mean brokerName?",
		"mapedFileSizeCommitLog":   "did you mean mappedFileSizeCommitLog?",
		"sendMessageThreadPoolNum": "did you mean sendMessageThreadPoolNums?",
		"listen_port":              "did you mean listenPort?",
		"authenticationEnable":     "did you mean authenticationEnabled?",
		"xyz":                      "none has a name like it",
		"":                         "none has a name like it",
	} {
		c := New()
		if err := c.Set(key, "1", "here"); err != nil || len(c.Notes) != 1 || !strings.Contains(c.Notes[0], want) {
			t.Errorf("%s: %v, %q", key, err, c.Notes)
		}
	}
}

func TestEnvironment(t *testing.T) {
	for _, c := range []struct {
		role  Role
		env   string
		key   string
		value string
		notes int
		err   string
	}{
		{AllInOne, "APOGEE_DATA=/d", "storePathRootDir", "/d", 0, ""},
		{AllInOne, "APOGEE_STORE_PATH_ROOT_DIR=/d", "storePathRootDir", "/d", 0, ""},
		{AllInOne, "APOGEE_DATA=/d APOGEE_STORE_PATH_ROOT_DIR=/d", "storePathRootDir", "/d", 0, ""},
		{AllInOne, "APOGEE_DATA=/d APOGEE_STORE_PATH_ROOT_DIR=/e", "", "", 0, "both set storePathRootDir"},
		{AllInOne, "APOGEE_LISTEN=0.0.0.0", "bindAddress", "0.0.0.0", 0, ""},
		{AllInOne, "APOGEE_BROKER_PORT=0", "listenPort", "0", 0, ""},
		{AllInOne, "APOGEE_NAMESRV_PORT=1", "namesrvPort", "1", 0, ""},
		{AllInOne, "APOGEE_HTTP_PORT=1", "httpPort", "1", 0, ""},
		{AllInOne, "APOGEE_HTTP_PORT=x", "", "", 0, "APOGEE_HTTP_PORT: httpPort=x: want"},
		{AllInOne, "APOGEE_NAMESRV=a:1", "namesrvAddr", "a:1", 0, ""},
		{AllInOne, "APOGEE_DAT=/d", "storePathRootDir", "", 1, ""},
		{AllInOne, "APOGEE_TIMER_WHEEL_ENABLE=true", "", "", 1, ""},
		{AllInOne, "APOGEE_ACL_ENABLE=true", "", "", 0, "stand open"},
		{AllInOne, "APOGEE_CONFIG=x APOGEE_LOG_LEVEL=debug APOGEE_LOG_FORMAT=json PATH=/bin", "", "", 0, ""},
		{AllInOne, "NAMESRV_ADDR=a:1", "namesrvAddr", "", 0, ""},
		{Broker, "NAMESRV_ADDR=a:1", "namesrvAddr", "a:1", 0, ""},
		{Broker, "NAMESRV_ADDR=a:1 APOGEE_NAMESRV_ADDR=b:1", "namesrvAddr", "b:1", 0, ""},
		{NameServer, "APOGEE_LISTEN_PORT=5", "namesrvPort", "5", 0, ""},
	} {
		cfg := NewFor(c.role)
		err := cfg.LoadEnv(strings.Fields(c.env))
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) || len(cfg.Notes) != c.notes {
			t.Errorf("%s: %v, %q", c.env, err, cfg.Notes)
		}
		if c.key != "" && cfg.Text(c.key) != c.value {
			t.Errorf("%s: %s=%s, want %s", c.env, c.key, cfg.Text(c.key), c.value)
		}
	}
	c := New()
	if err := c.LoadEnv([]string{"APOGEE_DAT=/d"}); err != nil || !strings.Contains(c.Notes[0], "did you mean APOGEE_DATA?") {
		t.Errorf("%v %q", err, c.Notes)
	}
}

// TestEnvNames: no two keys share a variable.
func TestEnvNames(t *testing.T) {
	for key, want := range map[string]string{"brokerIP1": "APOGEE_BROKER_IP1", "storePathRootDir": "APOGEE_STORE_PATH_ROOT_DIR", "httpPort": "APOGEE_HTTP_PORT"} {
		if got := EnvName(key); got != want {
			t.Errorf("%s: %s", key, got)
		}
	}
	owner := map[string]string{}
	claim := func(name, key string) {
		if o, ok := owner[name]; ok && o != key {
			t.Errorf("%s is of %s and %s", name, o, key)
		}
		owner[name] = key
	}
	for _, s := range Settings() {
		claim(EnvName(s.Key), s.Key)
		if s.Flag != "" {
			claim(flagEnvName(s.Flag), s.Key)
		}
	}
	for k := range inertKeys() {
		claim(EnvName(k), k)
	}
	for _, v := range processVariables() {
		claim(v, "the command line")
	}
}

func TestRenderShowsWhatIsUsed(t *testing.T) {
	t.Setenv("HOME", "/home/u")
	c := New()
	lines := strings.Split(strings.TrimSpace(c.Render()), "\n")
	if !slices.IsSorted(lines) || len(lines) != len(Settings()) {
		t.Errorf("%d lines, sorted %v", len(lines), slices.IsSorted(lines))
	}
	for _, want := range []string{"storePathRootDir=/home/u/apogee", "storePathCommitLog=/home/u/apogee/commitlog", "kvConfigPath=/home/u/apogee/namesrv/kvConfig.json",
		"brokerName=" + c.BrokerName(), "listenPort=10911", "flushDiskType=SYNC_FLUSH", "brokerIP1="} {
		if !slices.Contains(lines, want) {
			t.Errorf("no %s in\n%s", want, c.Render())
		}
	}
	n := NewFor(NameServer)
	if err := n.Set("listenPort", "70000", "here"); err == nil || !strings.Contains(err.Error(), "listenPort=70000: want a whole number from 0") {
		t.Error(err)
	}
	if err := n.Set("storePathCommitLog", "/log", "here"); err != nil {
		t.Fatal(err)
	}
	if r := n.Render(); !strings.Contains(r, "\nlistenPort=9876\n") || !strings.Contains(r, "\nstorePathCommitLog=/log\n") {
		t.Error(r)
	}
}

func TestDataDir(t *testing.T) {
	for _, c := range []struct{ home, set, want string }{
		{"/home/u", "", "/home/u/apogee"},
		{"/home/u", "/d", "/d"},
		{"", "", "WD/apogee"},
		{"/home/u", "d", "WD/d"},
	} {
		t.Setenv("HOME", c.home)
		wd, err := os.Getwd()
		if err != nil {
			t.Fatal(err)
		}
		cfg := New()
		if err := cfg.Set("storePathRootDir", c.set, "here"); err != nil {
			t.Fatal(err)
		}
		if got, err := cfg.DataDir(); err != nil || got != strings.Replace(c.want, "WD", wd, 1) {
			t.Errorf("%+v: %s, %v", c, got, err)
		}
	}
}

func TestLegalName(t *testing.T) {
	for host, want := range map[string]string{
		"web-1": "web-1", "a.example.com": "a-example-com", "": "broker-a", "ü": "--", strings.Repeat("x", 200): strings.Repeat("x", 99),
	} {
		if got := legalName(host); got != want || !isServerName(got) || !isTopicName(got) {
			t.Errorf("%q: %q", host, got)
		}
	}
}

func TestFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f.conf")
	for text, want := range map[string]string{
		"regionId = with spaces  \n":            "with spaces",
		"# regionId=no\n! no\nregionId:colon\n": "colon",
		"regionId=one\nregionId=two\n":          "two",
		"regionId=a\\\n  b\n":                   "ab",
		"regionId=\\u8ba2\\u5355\n":             "订单",
		"\ufeffregionId=bom\n":                  "bom",
		"regionId=windows\r\ntraceOn=true\r\n":  "windows",
		"regionId=${regionId} ${a\n":            "${regionId} ${a",
		"regionId=${HOME}\n":                    "${HOME}",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c := New()
		if err := c.LoadFile(file); err != nil || c.Text("regionId") != want || len(c.Notes) != 0 {
			t.Errorf("%q: %q, %v, %q", text, c.Text("regionId"), err, c.Notes)
		}
	}
	for _, text := range []string{"regionId=\\uZZ\n", "traceOn=maybe\n", "regionId=a\\nb\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := New().LoadFile(file); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if err := New().LoadFile(filepath.Join(t.TempDir(), "none.conf")); err == nil || !strings.Contains(err.Error(), "none.conf") {
		t.Error(err)
	}
}

func TestMarkdown(t *testing.T) {
	table := Markdown()
	lines := strings.Split(strings.TrimSpace(table), "\n")
	if len(lines) != len(Settings())+2 {
		t.Errorf("%d lines", len(lines))
	}
	for _, l := range lines {
		if n := strings.Count(strings.ReplaceAll(l, `\|`, ""), "|"); n != 6 {
			t.Errorf("%d bars in %s", n, l)
		}
	}
	for _, want := range []string{
		"| `storePathRootDir` | `APOGEE_STORE_PATH_ROOT_DIR` `APOGEE_DATA` `--data` | – |",
		"| `namesrvPort` | `APOGEE_NAMESRV_PORT` `--namesrv-port` | `9876` | a whole number from 0 to 65535 |",
		"(Apogee's own) |",
	} {
		if !strings.Contains(table, want) {
			t.Errorf("no %s", want)
		}
	}
}

// FuzzFile: whatever a file holds, it loads or is refused, and what is kept is legal and stays on its line.
func FuzzFile(f *testing.F) {
	f.Add("brokerName=a\nlistenPort=1\n")
	f.Add("messageDelayLevel=1s s 5\ndeleteWhen=;\nnamesrvAddr=:1;[::1]:2\n")
	f.Add("a\\u0000=b\\\n c:d\nregionId=\\n\\t${x\n")
	f.Fuzz(func(t *testing.T, text string) {
		file := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c := New()
		if err := c.LoadFile(file); err != nil {
			return
		}
		for _, s := range Settings() {
			if kept, note, err := s.read(c.Text(s.Key)); err != nil || kept != c.Text(s.Key) || note != "" {
				t.Errorf("%s: kept %q, read again %q %q %v", s.Key, c.Text(s.Key), kept, note, err)
			}
		}
		if n := strings.Count(c.Render(), "\n"); n != len(Settings()) {
			t.Errorf("%d lines rendered", n)
		}
	})
}
