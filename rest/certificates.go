package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// certificate is the front's own, read anew when its files change. Files that do not fit together change nothing, and are named in one line of the log.
type certificate struct {
	certFile, keyFile string

	mu      sync.Mutex
	seen    string // what the file system said of the files when they were last read
	current *tls.Certificate
}

func loadCertificate(certFile, keyFile string) (*certificate, error) {
	c := &certificate{certFile: certFile, keyFile: keyFile, seen: stamps(certFile, keyFile)}
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("-tls-cert and -tls-key: %w", err)
	}
	c.current = &pair
	return c, nil
}

// get is for tls.Config: each handshake gets the certificate of its moment, and connections that are open keep theirs.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen := stamps(c.certFile, c.keyFile)
	if seen == c.seen {
		return c.current, nil
	}
	c.seen = seen
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		slog.Error("the certificate stays what it was: " + err.Error())
		return c.current, nil
	}
	slog.Info("new certificate: " + c.certFile)
	c.current = &pair
	return c.current, nil
}

func stamps(files ...string) string {
	found := ""
	for _, file := range files {
		if info, err := os.Stat(file); err == nil {
			found += fmt.Sprint(info.ModTime().UnixNano(), " ", info.Size(), ";")
		}
	}
	return found
}

// serverTLS is how the front serves. HTTP/2 is left out: what bounds slow readers was made for a connection a request.
func serverTLS(c *certificate) *tls.Config {
	return &tls.Config{GetCertificate: c.get, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
}

// gatewayCredentials are for the connection to the gateway: in plain text without a file, else TLS with a gateway that shows the very certificate of the
// file. That is more than a name and a CA would ask for, and holds whatever name the gateway is dialled by. The file is read at each handshake.
func gatewayCredentials(certFile string) (credentials.TransportCredentials, error) {
	if certFile == "" {
		return insecure.NewCredentials(), nil
	}
	if _, err := leafOf(certFile); err != nil {
		return nil, err
	}
	return credentials.NewTLS(&tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, // In its place:
		VerifyConnection:   func(state tls.ConnectionState) error { return isCertificateOf(certFile, state) },
	}), nil
}

func isCertificateOf(certFile string, state tls.ConnectionState) error {
	wanted, err := leafOf(certFile)
	if err != nil {
		return err
	}
	if len(state.PeerCertificates) == 0 || !bytes.Equal(state.PeerCertificates[0].Raw, wanted.Raw) {
		return errors.New("the gateway's certificate is not that of " + certFile)
	}
	if now := time.Now(); now.Before(wanted.NotBefore) || now.After(wanted.NotAfter) {
		return errors.New("the gateway's certificate is not valid now")
	}
	return nil
}

// leafOf is the first certificate of a file.
func leafOf(certFile string) (*x509.Certificate, error) {
	data, err := os.ReadFile(certFile)
	if err != nil {
		return nil, fmt.Errorf("-gateway-cert: %w", err)
	}
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			return x509.ParseCertificate(block.Bytes)
		}
	}
	return nil, errors.New("-gateway-cert: " + certFile + " has no certificate in PEM format")
}
