package goclient

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTheGuideNamesWhatTheClientHas: docs/from-apache-clients.md says what each call of the Apache Go client becomes.
// What it calls by that client's names must exist in it. Needs no server.
func TestTheGuideNamesWhatTheClientHas(t *testing.T) {
	text, err := os.ReadFile("../../docs/from-apache-clients.md")
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/apache/rocketmq-client-go/v2").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	root := strings.TrimSpace(string(out))
	packages := map[string]map[string]bool{}
	for name, dir := range map[string]string{"rocketmq": ".", "consumer": "consumer", "producer": "producer", "primitive": "primitive", "rlog": "rlog"} {
		packages[name] = exported(t, filepath.Join(root, dir))
	}
	checked := 0
	for _, m := range regexp.MustCompile("`(rocketmq|consumer|producer|primitive|rlog)\\.([A-Za-z]+(?:\\.[A-Za-z]+)?)`").FindAllStringSubmatch(string(text), -1) {
		checked++
		if !packages[m[1]][m[2]] {
			t.Errorf("the client has no %s.%s", m[1], m[2])
		}
	}
	if checked < 80 {
		t.Errorf("only %d names found in the guide", checked)
	}
	t.Logf("%d names", checked)
}

// exported returns a package's exported names: Name, Type.Method, Type.Field, those of embedded types among them.
func exported(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	names, embeds := map[string]bool{}, map[string][]string{}
	fset := token.NewFileSet()
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil {
					names[d.Name.Name] = true
				} else {
					names[typeName(d.Recv.List[0].Type)+"."+d.Name.Name] = true
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if v, ok := s.(*ast.ValueSpec); ok {
						for _, n := range v.Names {
							names[n.Name] = true
						}
					}
					if typ, ok := s.(*ast.TypeSpec); ok {
						members(names, embeds, typ)
					}
				}
			}
		}
	}
	for typ, embedded := range embeds {
		for _, e := range embedded {
			for name := range names {
				if rest, ok := strings.CutPrefix(name, e+"."); ok {
					names[typ+"."+rest] = true
				}
			}
		}
	}
	return names
}

func members(names map[string]bool, embeds map[string][]string, s *ast.TypeSpec) {
	names[s.Name.Name] = true
	var list *ast.FieldList
	switch typ := s.Type.(type) {
	case *ast.StructType:
		list = typ.Fields
	case *ast.InterfaceType:
		list = typ.Methods
	default:
		return
	}
	for _, f := range list.List {
		for _, n := range f.Names {
			names[s.Name.Name+"."+n.Name] = true
		}
		if len(f.Names) == 0 {
			embeds[s.Name.Name] = append(embeds[s.Name.Name], typeName(f.Type))
		}
	}
}

func typeName(e ast.Expr) string {
	if star, ok := e.(*ast.StarExpr); ok {
		e = star.X
	}
	if id, ok := e.(*ast.Ident); ok {
		return id.Name
	}
	return ""
}
