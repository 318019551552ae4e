package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// publicPackages are the packages that documents name, by the name they have there.
func publicPackages() map[string]string {
	return map[string]string{"client": "client", "admin": "client/admin", "apogeetest": "apogeetest", "dedup": "client/dedup", "storetest": "client/dedup/storetest"}
}

// named finds Go names in a document's code: client.New, client.Producer.Send, client.Message.Keys.
var named = regexp.MustCompile("(?:^|[^A-Za-z0-9_./\"-])([a-z]+)\\.([A-Z][A-Za-z0-9]*)(?:\\.([A-Z][A-Za-z0-9]*))?")

// TestDocumentsNameWhatThereIs: what a document calls by its Go name exists.
func TestDocumentsNameWhatThereIs(t *testing.T) {
	exported := map[string]map[string]bool{}
	for name, dir := range publicPackages() {
		if _, err := os.Stat(filepath.Join("../..", dir)); err == nil {
			exported[name] = exportedNames(t, filepath.Join("../..", dir))
		}
	}
	checked := 0
	for _, page := range documents(t) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(text), "\n") {
			for _, m := range named.FindAllStringSubmatch(line, -1) {
				names, ours := exported[m[1]]
				if !ours {
					continue
				}
				checked++
				name := m[2]
				if m[3] != "" {
					name += "." + m[3]
				}
				if !names[name] {
					t.Errorf("%s:%d: there is no %s.%s: name what there is", strings.TrimPrefix(page, "../../"), i+1, m[1], name)
				}
			}
		}
	}
	if checked < 3 {
		t.Errorf("only %d names found in the documents", checked)
	}
}

// documents returns README.md and the pages of docs but the decisions, which tell of what was.
func documents(t *testing.T) []string {
	t.Helper()
	pages := []string{"../../README.md"}
	err := filepath.WalkDir("../../docs", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && d.Name() == "decisions" {
			return filepath.SkipDir
		}
		if strings.HasSuffix(path, ".md") {
			pages = append(pages, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return pages
}

// exportedNames returns a package's exported names: Name, and Type.Method and Type.Field.
func exportedNames(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	embeds := map[string][]string{} // type to the types of its package that it embeds
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
					names[receiver(d)+"."+d.Name.Name] = true
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					addSpec(names, embeds, spec)
				}
			}
		}
	}
	for typ, embedded := range embeds { // one level: what is promoted
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

func receiver(d *ast.FuncDecl) string {
	typ := d.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	if id, ok := typ.(*ast.Ident); ok {
		return id.Name
	}
	return ""
}

func addSpec(names map[string]bool, embeds map[string][]string, spec ast.Spec) {
	switch s := spec.(type) {
	case *ast.ValueSpec:
		for _, n := range s.Names {
			names[n.Name] = true
		}
	case *ast.TypeSpec:
		names[s.Name.Name] = true
		var fields *ast.FieldList
		switch typ := s.Type.(type) {
		case *ast.StructType:
			fields = typ.Fields
		case *ast.InterfaceType:
			fields = typ.Methods
		default:
			return
		}
		for _, field := range fields.List {
			if len(field.Names) == 0 {
				typ := field.Type
				if star, ok := typ.(*ast.StarExpr); ok {
					typ = star.X
				}
				if id, ok := typ.(*ast.Ident); ok {
					embeds[s.Name.Name] = append(embeds[s.Name.Name], id.Name)
				}
			}
			for _, n := range field.Names {
				names[s.Name.Name+"."+n.Name] = true
			}
		}
	}
}
