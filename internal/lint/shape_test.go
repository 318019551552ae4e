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

// TestTestsWaitForConditions: a sleep in a test is either too short on a busy machine or too long on a fast one.
func TestTestsWaitForConditions(t *testing.T) {
	walkGo(t, func(path string, fset *token.FileSet, f *ast.File) {
		if !strings.HasSuffix(path, "_test.go") {
			return
		}
		ast.Inspect(f, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" && sel.Sel.Name == "Sleep" && !allowsSleep(f, fset, sel) {
				t.Errorf("%s: time.Sleep in a test: wait for the condition (testkit.Eventually) or use testing/synctest; inside a synctest bubble say so with a comment //synctest on the line", fset.Position(sel.Pos()))
			}
			return true
		})
	})
}

// allowsSleep reports whether the line of n carries the comment //synctest: inside such a bubble time is simulated.
func allowsSleep(f *ast.File, fset *token.FileSet, n ast.Node) bool {
	line := fset.Position(n.Pos()).Line
	for _, g := range f.Comments {
		for _, c := range g.List {
			if fset.Position(c.Pos()).Line == line && strings.Contains(c.Text, "synctest") {
				return true
			}
		}
	}
	return false
}
