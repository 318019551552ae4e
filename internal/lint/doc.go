// Package lint holds the rules of this repository that a compiler does not check. Each rule is a test
// whose message names the remedy.
package lint
