// E columns of an access that has one value for all of them: loaded once, zero where none of them is left.
template <Hint H, int E, class T>
ONEPASS_INLINE vec<T, E> load_same_if(const T* p, int left) {
  const T x = load_if<H, 1>(p, left > 0).get(0);
  vec<T, E> v = {};
#pragma unroll
  for (int i = 0; i < E; ++i) v.set(i, x);
  return v;
}
