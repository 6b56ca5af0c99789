package main

import (
	"os"
	"runtime"
	"syscall"
)

func init() {
	// The kernel's word about the parent's end goes to the thread that asked for it, which must not end before the process.
	runtime.LockOSThread()
}

// dieWithParent has the kernel kill this process when its parent ends, however that ends. Call it on the main thread.
func dieWithParent(parent int) {
	if _, _, failed := syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0); failed != 0 || os.Getppid() != parent {
		os.Exit(1)
	}
}
