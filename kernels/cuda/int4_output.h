// What an epilogue of an INT4 projection is told.
#pragma once

namespace fut::cuda {

// The outputs of rows g and g + 8 of a strip for one token.
struct Int4Output {
  int strip, g, token;
};

}  // namespace fut::cuda
