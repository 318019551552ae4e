package lint

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"sort"
	"strings"
	"testing"
)

const module = "github.com/apogeemq/apogee"

// layer is one rule of the import graph: the packages below prefix may import only what allow names
// (of this module; the standard library and other modules are free unless deny names them).
type layer struct {
	prefix string
	allow  []string
	remedy string
}

// layers is ordered from the most specific prefix to the least: the first that matches a package is its rule.
var layers = []layer{
	{"internal/message", nil, "the message is the bottom: move what it needs from above into it, or pass it in"},
	{"internal/vfs", nil, "vfs knows files only: pass in what it needs"},
	{"internal/fastjson", nil, "fastjson knows JSON text only"},
	{"internal/config", nil, "config declares settings: components get their own option structs from cmd and server"},
	{"internal/run", nil, "run knows goroutines only"},
	{"internal/testkit", []string{"internal/message", "internal/vfs"}, "testkit is used by every package's tests: keep it below them"},
	{"internal/lint", nil, "lint only reads the tree"},
	{"internal/metafile", []string{"internal/vfs"}, "metadata files know the file system only"},
	{"internal/filter", []string{"internal/message"}, "a filter judges a message: it knows no store and no protocol"},
	{"internal/rebalance", []string{"internal/protocol", "internal/message"}, "allocation strategies are pure functions over queues and client ids"},
	{"internal/protocol", []string{"internal/message", "internal/fastjson"}, "protocol is plain data: logic belongs to the package that acts on it"},
	{"internal/remoting", []string{"internal/protocol", "internal/fastjson", "internal/message", "internal/run"}, "remoting moves frames: it must not know a broker, a store or a client"},
	{"internal/store", []string{"internal/store", "internal/message", "internal/vfs", "internal/run"}, "the store never sees protocol or remoting: the broker translates"},
	{"internal/storetool", []string{"internal/store", "internal/message", "internal/vfs", "internal/metafile", "internal/fastjson", "internal/broker/delay"}, "the store's tools read files: they know no server"},
	{"internal/broker", []string{"internal/broker", "internal/store", "internal/filter", "internal/protocol", "internal/remoting", "internal/message", "internal/vfs", "internal/metafile", "internal/fastjson", "internal/run"}, "servers do not import one another: declare a small interface and let internal/server pass the implementation"},
	{"internal/namesrv", []string{"internal/namesrv", "internal/protocol", "internal/remoting", "internal/message", "internal/vfs", "internal/metafile", "internal/fastjson", "internal/run"}, "servers do not import one another: declare a small interface and let internal/server pass the implementation"},
	{"internal/load", []string{"internal/remoting", "internal/protocol", "internal/message", "internal/fastjson"}, "the load generator drives servers from outside: it knows the wire and no server"},
	{"internal/server", []string{"internal"}, ""},
	{"client", []string{"client", "internal/protocol", "internal/remoting", "internal/message", "internal/filter", "internal/rebalance", "internal/run", "internal/fastjson"}, "the client imports no server and no store"},
	{"apogeetest", []string{"internal/server", "internal/config"}, "apogeetest starts internal/server and nothing else"},
	{"interop", []string{"client"}, "an interop member is a user of the client like any other"},
	{"bench", []string{"bench/drive", "internal/store", "internal/vfs", "internal/fastjson", "internal/remoting", "internal/protocol", "internal/message", "internal/load", "client"}, "a benchmark drives the server from outside"},
	{"cmd", []string{"internal/server", "internal/config", "internal/run", "internal/store", "internal/storetool", "internal/remoting", "internal/protocol", "internal/load", "client"}, "a command is a thin skin: what it needs belongs behind internal/server or client"},
}

type goPackage struct {
	ImportPath  string
	Imports     []string
	TestImports []string
}

// TestImportsPointOneWay keeps the import graph of docs/architecture.md true. Tests of a package may use
// internal/testkit besides what the package itself may import.
func TestImportsPointOneWay(t *testing.T) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,TestImports", module+"/...")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	dec := json.NewDecoder(bytes.NewReader(out))
	seen := 0
	var bad []string
	for dec.More() {
		var p goPackage
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		seen++
		name := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		rule, ok := layerOf(name)
		if !ok {
			bad = append(bad, name+": no rule: add a line for it to layers in internal/lint")
			continue
		}
		for _, imp := range p.Imports {
			if !allowed(rule, name, imp, false) {
				bad = append(bad, name+" imports "+imp+": "+rule.remedy)
			}
		}
		for _, imp := range p.TestImports {
			if !allowed(rule, name, imp, true) {
				bad = append(bad, "a test of "+name+" imports "+imp+": "+rule.remedy)
			}
		}
	}
	if seen < 10 {
		t.Fatalf("go list named only %d packages", seen)
	}
	sort.Strings(bad)
	for _, b := range bad {
		t.Error(b)
	}
}

func layerOf(name string) (layer, bool) {
	for _, l := range layers {
		if below(name, l.prefix) {
			return l, true
		}
	}
	return layer{}, false
}

func below(name, prefix string) bool {
	return name == prefix || strings.HasPrefix(name, prefix+"/")
}

func allowed(rule layer, from, imp string, test bool) bool {
	if !below(imp, module) {
		return true
	}
	name := strings.TrimPrefix(imp, module+"/")
	if name == from || test && below(name, "internal/testkit") {
		return true
	}
	for _, a := range rule.allow {
		if below(name, a) {
			return true
		}
	}
	return false
}
