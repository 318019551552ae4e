package lint

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestModulesBesideFollowTheirParent: a module of its own that stands on this one (replace … => ../..) names this one's
// dependencies in its go.mod and go.sum. A dependency that is new here must be added there.
func TestModulesBesideFollowTheirParent(t *testing.T) {
	seen := 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && (d.Name() == ".git" || d.Name() == "target" || d.Name() == "testdata") {
			if err == nil {
				err = filepath.SkipDir
			}
			return err
		}
		if d.Name() != "go.mod" || filepath.Dir(path) == "../.." {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), "replace "+module+" =>") {
			return err
		}
		seen++
		cmd := exec.Command("go", "list", "-deps", "./...")
		cmd.Dir = filepath.Dir(path)
		if out, err := cmd.CombinedOutput(); err != nil {
			dir := strings.TrimPrefix(cmd.Dir, "../../")
			t.Errorf("%s: %v: run go mod tidy in %s\n%s", dir, err, dir, out)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen == 0 {
		t.Error("no module with a replace directive found")
	}
}
