package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// walkGo parses every Go file of the repository's own modules and hands it to visit with its slash path.
func walkGo(t *testing.T, visit func(path string, fset *token.FileSet, f *ast.File)) {
	t.Helper()
	fset := token.NewFileSet()
	n := 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || d.Name() == ".git" || d.Name() == "target") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		n++
		visit(filepath.ToSlash(strings.TrimPrefix(path, "../../")), fset, f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n < 20 {
		t.Fatalf("only %d Go files found", n)
	}
}

// TestNoInitFunctions: what a package needs is passed in by whoever builds it.
func TestNoInitFunctions(t *testing.T) {
	walkGo(t, func(path string, fset *token.FileSet, f *ast.File) {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				t.Errorf("%s: func init: make it an explicit constructor that the caller calls", fset.Position(fn.Pos()))
			}
		}
	})
}

// TestNoJavaSuffixes keeps RocketMQ's nouns and leaves Java's suffixes.
func TestNoJavaSuffixes(t *testing.T) {
	walkGo(t, func(path string, fset *token.FileSet, f *ast.File) {
		if f.Name.Name == "util" || f.Name.Name == "utils" || f.Name.Name == "common" {
			t.Errorf("%s: package %s: name it for what is in it", path, f.Name.Name)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			ts, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			for _, suffix := range []string{"Manager", "Service", "Impl", "Util", "Utils", "Helper"} {
				if strings.HasSuffix(ts.Name.Name, suffix) {
					t.Errorf("%s: type %s: drop the suffix %s and name what it is", fset.Position(ts.Pos()), ts.Name.Name, suffix)
				}
			}
			return true
		})
	})
}

// TestTestsWaitForConditions: a sleep in a test is either too short on a busy machine or too long on a fast one. Only
// inside a bubble of testing/synctest, where time is simulated, it is neither.
func TestTestsWaitForConditions(t *testing.T) {
	walkGo(t, func(path string, fset *token.FileSet, f *ast.File) {
		if !strings.HasSuffix(path, "_test.go") {
			return
		}
		for _, pos := range realSleeps(f) {
			t.Errorf("%s: time.Sleep in a test: wait for the condition (testkit.Eventually), or sleep inside the function that synctest.Test is given", fset.Position(pos))
		}
	})
}

// realSleeps returns where a file mentions time.Sleep outside the function literals that synctest.Test is given.
func realSleeps(f *ast.File) []token.Pos {
	var found []token.Pos
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			return !selects(n.Fun, "synctest", "Test")
		case *ast.SelectorExpr:
			if selects(n, "time", "Sleep") {
				found = append(found, n.Pos())
			}
		}
		return true
	})
	return found
}

// selects reports whether e is pkg.name.
func selects(e ast.Expr, pkg, name string) bool {
	sel, ok := e.(*ast.SelectorExpr)
	if !ok || sel.Sel.Name != name {
		return false
	}
	x, ok := sel.X.(*ast.Ident)
	return ok && x.Name == pkg
}

// TestRealSleeps shows that the rule above finds what it is for.
func TestRealSleeps(t *testing.T) {
	const head = "package p\nfunc f() { "
	for body, want := range map[string]int{
		"time.Sleep(1)":                                                          1,
		"time.Sleep(1) //synctest":                                               1, // a comment simulates nothing
		"x := time.Sleep; x(1)":                                                  1,
		"go func() { time.Sleep(1) }(); time.Sleep(1)":                           2,
		"synctest.Test(t, func(t *testing.T) {}); time.Sleep(1)":                 1,
		"synctest.Test(t, func(t *testing.T) { go func() { time.Sleep(1) }() })": 0,
		"clock.Sleep(1)":                                                         0,
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "p_test.go", head+body+"\n}", 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(realSleeps(f)); got != want {
			t.Errorf("%s: %d found, want %d", body, got, want)
		}
	}
}
