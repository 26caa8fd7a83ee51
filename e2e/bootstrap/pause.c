// SPDX-License-Identifier: Apache-2.0
// The first process of a pod or of a node: it does nothing but outlive the others and reap them.
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void stop(int number) {
  (void)number;
  _exit(0);
}

static void reap(int number) {
  (void)number;
  while (waitpid(-1, 0, WNOHANG) > 0) {
  }
}

int main(void) {
  struct sigaction on_end = {.sa_handler = stop}, on_child = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP};
  sigaction(SIGINT, &on_end, 0);
  sigaction(SIGTERM, &on_end, 0);
  sigaction(SIGCHLD, &on_child, 0);
  for (;;) pause();
}
