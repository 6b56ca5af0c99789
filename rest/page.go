package main

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"time"
)

// The page at `/`: a view of the server and a box to try it. Its files are in the program; it asks nothing of any other server.
//
//go:embed page
var pageFiles embed.FS

// pagePolicy lets the page load its own files and ask its own server, and nothing else.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"

var pageTypes = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

// pageHandlers are the page's files by their paths; index.html is at `/`.
func pageHandlers() (map[string]http.HandlerFunc, error) {
	handlers := map[string]http.HandlerFunc{}
	err := fs.WalkDir(pageFiles, "page", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := pageFiles.ReadFile(name)
		if err != nil {
			return err
		}
		at := "/" + name
		if name == "page/index.html" {
			at = "/{$}"
		}
		handlers[at] = pageFile(name, data)
		return nil
	})
	return handlers, err
}

func pageFile(name string, data []byte) http.HandlerFunc {
	digest := sha256.Sum256(data)
	tag := `"` + hex.EncodeToString(digest[:8]) + `"`
	return func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Type", pageTypes[path.Ext(name)])
		header.Set("Content-Security-Policy", pagePolicy)
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		header.Set("Cache-Control", "no-cache") // A new version of the server has a new page.
		header.Set("ETag", tag)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	}
}
