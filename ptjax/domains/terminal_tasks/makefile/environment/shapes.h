#define SCALE 1.0
double circle(double radius);
