#ifndef IBX_TESTS_H
#define IBX_TESTS_H

#include <stdbool.h>

// peer_may_die is set by a test that kills rank 1.
extern bool peer_may_die;

void test_check(void);
void test_load(void);
void test_refused(void);
void test_connect(void);
void test_sizes(void);
void test_order(void);
void test_abort(void);
void test_killed(void);
void test_orphans(void);
void test_stopped(void);
void test_exit(void);
void test_fork(void);
void test_rails(void);
void test_parts(void);
void test_norails(void);
void test_regions(void);
void test_torn(void);
void test_many(void);
void test_shared(void);
void test_split(void);
void test_leave(void);
void test_speed(void);
void test_flow(void);

#endif
