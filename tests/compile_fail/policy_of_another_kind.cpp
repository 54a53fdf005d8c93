// error: (template constraint failure|constraints not satisfied).*policies
// A scorer in the place of the estimator.
#include <lrmoe/lrmoe.hpp>

using wrong = lrmoe::policies<lrmoe::softmax_top_k, lrmoe::fixed_fraction, lrmoe::lrm_score,
                              lrmoe::lrm_score>;
wrong value;
