# psd_install_texts(program component [share]): texts that the built program prints during the installation: its manual
# page and its shell completions. `share`: their folder, if not the prefix's.
find_program(PSD_GZIP gzip)
function(psd_install_texts program component)
  set(share "\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}")
  if(ARGC GREATER 2)
    set(share "${ARGV2}")
  endif()
  install(CODE "
    set(share \"\$ENV{DESTDIR}${share}\")
    foreach(text
            \"man:man/man1/${program}.1\"
            \"completion bash:bash-completion/completions/${program}\"
            \"completion zsh:zsh/vendor-completions/_${program}\"
            \"completion fish:fish/vendor_completions.d/${program}.fish\")
      string(REGEX MATCH \"^([^:]*):(.*)\$\" matched \"\${text}\")
      set(path \"\${share}/\${CMAKE_MATCH_2}\")
      string(REPLACE \" \" \";\" command \"\${CMAKE_MATCH_1}\")
      get_filename_component(folder \"\${path}\" DIRECTORY)
      file(MAKE_DIRECTORY \"\${folder}\")
      execute_process(COMMAND \"$<TARGET_FILE:${program}>\" \${command} OUTPUT_FILE \"\${path}\" RESULT_VARIABLE result)
      if(NOT result EQUAL 0)
        message(FATAL_ERROR \"'${program} \${command}' printed nothing to install: \${result}\")
      endif()
      if(\"\${path}\" MATCHES \"[.]1\$\" AND EXISTS \"${PSD_GZIP}\")
        execute_process(COMMAND \"${PSD_GZIP}\" -9nf \"\${path}\" COMMAND_ERROR_IS_FATAL ANY)
        set(path \"\${path}.gz\")
      endif()
      message(STATUS \"Installing: \${path}\")
    endforeach()" COMPONENT ${component})
endfunction()
