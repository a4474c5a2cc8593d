// A tile in shared memory, whose columns lie a fixed number of elements apart.

// R neighbouring elements of a column, word by word.
template <int R, class T>
ONEPASS_INLINE void tile_put(T* p, const vec<T, R>& v) {
  if constexpr (R * sizeof(T) >= 4) {
#pragma unroll
    for (int i = 0; i < vec<T, R>::words; ++i) ((unsigned*)p)[i] = v.w[i];
  } else {
#pragma unroll
    for (int i = 0; i < R; ++i) p[i] = v.get(i);
  }
}
template <int R, class T>
ONEPASS_INLINE vec<T, R> tile_take(const T* p) {
  vec<T, R> v;
  if constexpr (R * sizeof(T) >= 4) {
#pragma unroll
    for (int i = 0; i < vec<T, R>::words; ++i) v.w[i] = ((const unsigned*)p)[i];
  } else {
#pragma unroll
    for (int i = 0; i < R; ++i) v.set(i, p[i]);
  }
  return v;
}

// E elements of as many neighbouring columns.
template <int E, int pitch, class T>
ONEPASS_INLINE vec<T, E> tile_across(const T* p) {
  vec<T, E> v;
#pragma unroll
  for (int i = 0; i < E; ++i) v.set(i, p[i * pitch]);
  return v;
}
template <int E, int pitch, class T>
ONEPASS_INLINE void tile_spread(T* p, const vec<T, E>& v) {
#pragma unroll
  for (int i = 0; i < E; ++i) p[i * pitch] = v.get(i);
}
