# The Python that tests and tools run under: the first one that has numpy (Debian: python3-numpy).
set(BATON_PYTHON "" CACHE FILEPATH "python3 with numpy, for tests and tools")
if(NOT BATON_PYTHON)
  foreach(candidate /usr/bin/python3 python3 /opt/homebrew/bin/python3)
    execute_process(COMMAND ${candidate} -c "import numpy" RESULT_VARIABLE failed
      OUTPUT_QUIET ERROR_QUIET)
    if(failed EQUAL 0)
      set(BATON_PYTHON ${candidate} CACHE FILEPATH "python3 with numpy" FORCE)
      break()
    endif()
  endforeach()
endif()
if(NOT BATON_PYTHON)
  message(WARNING "no python3 with numpy was found: tests that need it are left out "
    "(tools/deps.sh installs it)")
endif()
