#include <stdio.h>
#include <stdlib.h>

#include "shapes.h"

int main(int argc, char **argv) {
  if (argc != 2) return 2;
  printf("%.3f\n", circle(atof(argv[1])));
  return 0;
}
