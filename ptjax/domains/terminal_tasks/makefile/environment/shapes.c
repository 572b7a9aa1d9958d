#include "shapes.h"

#include <math.h>

double circle(double radius) { return SCALE * M_PI * pow(radius, 2.0); }
