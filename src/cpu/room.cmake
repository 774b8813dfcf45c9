# Each ISA's file has the flags of its ISA and no other file has any: what these files hold runs
# only after bt_cpu_isa_supported() has returned true. Vector code converts between widths all the time, so the
# conversion warning is off in them.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  set(avx2_flags -mavx2 -mfma -mf16c)
  set(avx512_flags ${avx2_flags} -mavx512f -mavx512bw -mavx512dq -mavx512vl)
  set_source_files_properties(${CMAKE_CURRENT_SOURCE_DIR}/cpu/kernels_avx2.c PROPERTIES
    COMPILE_OPTIONS "${avx2_flags};-Wno-conversion")
  set_source_files_properties(${CMAKE_CURRENT_SOURCE_DIR}/cpu/kernels_avx512.c PROPERTIES
    COMPILE_OPTIONS "${avx512_flags};-Wno-conversion")
  set_source_files_properties(${CMAKE_CURRENT_SOURCE_DIR}/cpu/kernels_avx512vnni.c PROPERTIES
    COMPILE_OPTIONS "${avx512_flags};-mavx512vnni;-Wno-conversion")
endif()
