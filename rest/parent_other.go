//go:build !linux

package main

import (
	"os"
	"time"
)

// dieWithParent looks every second whether the parent still is the parent.
func dieWithParent(parent int) {
	go func() {
		for os.Getppid() == parent {
			time.Sleep(time.Second)
		}
		os.Exit(1)
	}()
}
