// Package smallfs fills a small file system under a real server, and frees it. It holds a test only.
package smallfs
