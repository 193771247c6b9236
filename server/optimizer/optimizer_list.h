#pragma once

#include <variant>

#include "server/optimizer/adadelta.h"
#include "server/optimizer/adagrad.h"
#include "server/optimizer/adam.h"
#include "server/optimizer/adamw.h"
#include "server/optimizer/delayed_nesterov.h"
#include "server/optimizer/ftrl.h"
#include "server/optimizer/group_ftrl.h"
#include "server/optimizer/lion.h"
#include "server/optimizer/rmsprop.h"
#include "server/optimizer/rowwise_adagrad.h"
#include "server/optimizer/sgd.h"

namespace psd {

/// All optimizers; the first is the default. To add one, add its file and a line here.
///
/// An optimizer is a value type with kName, kSummary, kLearningRate (the default), visitOptions (passes
/// each option once: its key with text, member and range), slots() (its per-weight state), visitStep (calls a
/// visitor with the step functor, whose scalars for this update are computed in double and then rounded once)
/// and, if options can contradict each other, problem(). A step functor is trivially copyable, has kSlots and
/// `operator()(float& w, float g, float* slots)`. An optimizer that must not miss updates, as table rows do
/// when a gradient does not touch them, has kTensorsOnly.
///
/// An optimizer for embedding tables only has visitRowStep in place of visitStep, and kForTensors, the name
/// of one to use for tensors. Its functor is trivially copyable and of one of two kinds. That of
/// RowwiseAdagrad has kRowSlots, which is 1, `gradient(float w, float g)`, the gradient of a value including
/// weight decay, and `factor(float meanSquare, float& slot)`, the step size: each value decreases by factor ·
/// gradient. meanSquare is the mean of the squared gradients of the row. GroupFtrlStep is the other kind.
///
/// An optimizer whose weights are a function of its slots has kDerivesWeights and kLearningRates, the range
/// of the rate, which never changes. Zero is the weight of its initial slots. Its functor has kRaces, equal
/// to UpdateScalars::races, and the function, weight(); see FtrlStep and GroupFtrlStep. A step does not use
/// the weight that it replaces, and with kRaces the loops repeat weight() until it agrees with the slots.
using AnyOptimizer = std::variant<  //
    Sgd,                            //
    Adagrad,                        //
    Rmsprop,                        //
    Adadelta,                       //
    Adam,                           //
    AdamW,                          //
    DelayedNesterov,                //
    RowwiseAdagrad,                 //
    Ftrl,                           //
    GroupFtrl,                      //
    Lion>;

/// Whether an optimizer supports tensors only.
template <class Algorithm>
inline constexpr bool kTensorsOnly = requires {
  Algorithm::kTensorsOnly;
};

/// Whether an optimizer supports embedding tables only.
template <class Algorithm>
inline constexpr bool kRowsOnly = requires {
  typename Algorithm::RowStep;
};

/// Whether the weights are a function of the optimizer's slots.
template <class Algorithm>
inline constexpr bool kDerivesWeights = requires {
  Algorithm::kDerivesWeights;
};

/// Whether a step functor computes weights from slots alone.
template <class Step>
inline constexpr bool kDerivingStep = requires {
  Step::kRaces;
};

/// Whether a loop of this step functor must repeat weight(), because others may change the same slots.
template <class Step>
constexpr bool settles() {
  if constexpr (kDerivingStep<Step>) return Step::kRaces;
  return false;
}

}  // namespace psd
