// Holds the namespaces of a pod until it is told to end.
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static void end(int number) { exit(0); }

int main(void) {
  signal(SIGTERM, end);
  signal(SIGINT, end);
  for (;;) pause();
}
