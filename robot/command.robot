*** Settings ***
Documentation       The installed command from outside.
Resource            common.resource


*** Test Cases ***
Version
    ${result} =    Run Agents    --version
    Should Contain    ${result.stdout}    0.

Unknown Plan Is Not Found
    ${result} =    Run Agents    plan    status    no-such-plan    --json    rc=${3}
    Error Should Have A Hint    ${result}
