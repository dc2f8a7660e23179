// Kernels of a two-layer digit classifier: forward, loss, backward, Adam.
//
// Each output element belongs to one thread that adds in a fixed order (no atomics), so the same
// inputs give the same bits on every run. Matrices are row-major. A layer's weights have one row
// more than it has inputs: the last row is the bias.

#define BATCH_LIMIT 256  // threads of the loss kernel, power of two

extern "C" {

// output[r, o] = activation(bias[o] + sum_k input[r, k] * weights[k, o])
__global__ void dense_forward(const float *input, const float *weights, float *output, int rows,
                              int inputs, int outputs, int relu) {
  int element = blockIdx.x * blockDim.x + threadIdx.x;
  if (element >= rows * outputs) return;
  int row = element / outputs, column = element % outputs;
  float sum = weights[inputs * outputs + column];
  for (int k = 0; k < inputs; ++k) sum += input[row * inputs + k] * weights[k * outputs + column];
  output[element] = relu && sum < 0.0f ? 0.0f : sum;
}

// losses[step] = mean cross entropy of the rows, and its gradient:
// gradient[r, c] = (softmax(logits[r])[c] - (c == labels[r])) / rows. One block, a thread per row.
__global__ void softmax_cross_entropy(const float *logits, const int *labels, float *gradient,
                                      float *losses, int step, int rows, int classes) {
  __shared__ float partial[BATCH_LIMIT];
  int row = threadIdx.x;
  float loss = 0.0f;
  if (row < rows) {
    float largest = logits[row * classes];
    for (int c = 1; c < classes; ++c) largest = fmaxf(largest, logits[row * classes + c]);
    float sum = 0.0f;
    for (int c = 0; c < classes; ++c) {
      float exponential = expf(logits[row * classes + c] - largest);
      gradient[row * classes + c] = exponential;
      sum += exponential;
    }
    int label = labels[row];
    for (int c = 0; c < classes; ++c) {
      float target = c == label ? 1.0f : 0.0f;
      gradient[row * classes + c] = (gradient[row * classes + c] / sum - target) / rows;
    }
    loss = logf(sum) + largest - logits[row * classes + label];
  }
  partial[row] = loss;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (row < half) partial[row] += partial[row + half];
    __syncthreads();
  }
  if (row == 0) losses[step] = partial[0] / rows;
}

// gradient[k, o] = sum_r input[r, k] * output_gradient[r, o]; the bias row sees an input of 1.
__global__ void dense_backward_weights(const float *input, const float *output_gradient,
                                       float *gradient, int rows, int inputs, int outputs) {
  int element = blockIdx.x * blockDim.x + threadIdx.x;
  if (element >= (inputs + 1) * outputs) return;
  int k = element / outputs, column = element % outputs;
  float sum = 0.0f;
  for (int row = 0; row < rows; ++row) {
    float value = k < inputs ? input[row * inputs + k] : 1.0f;
    sum += value * output_gradient[row * outputs + column];
  }
  gradient[element] = sum;
}

// input_gradient[r, k] = sum_o output_gradient[r, o] * weights[k, o], 0 where ReLU cut input[r, k].
__global__ void dense_backward_input(const float *input, const float *weights,
                                     const float *output_gradient, float *input_gradient, int rows,
                                     int inputs, int outputs) {
  int element = blockIdx.x * blockDim.x + threadIdx.x;
  if (element >= rows * inputs) return;
  int row = element / inputs, k = element % inputs;
  float sum = 0.0f;
  if (input[element] > 0.0f) {
    for (int o = 0; o < outputs; ++o)
      sum += output_gradient[row * outputs + o] * weights[k * outputs + o];
  }
  input_gradient[element] = sum;
}

// Adam; the host folds the bias corrections of this step into rate and second_correction.
__global__ void adam(float *parameters, const float *gradient, float *first, float *second,
                     int count, float rate, float second_correction, float beta1, float beta2,
                     float epsilon) {
  int element = blockIdx.x * blockDim.x + threadIdx.x;
  if (element >= count) return;
  float g = gradient[element];
  float m = first[element] = beta1 * first[element] + (1.0f - beta1) * g;
  float v = second[element] = beta2 * second[element] + (1.0f - beta2) * g * g;
  parameters[element] -= rate * m / (sqrtf(v * second_correction) + epsilon);
}

// predictions[r] = the class with the largest logit.
__global__ void predict(const float *logits, int *predictions, int rows, int classes) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  int best = 0;
  for (int c = 1; c < classes; ++c)
    if (logits[row * classes + c] > logits[row * classes + best]) best = c;
  predictions[row] = best;
}

}  // extern "C"
