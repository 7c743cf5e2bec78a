Feature: The command answers people and programs

  Scenario: The version
    When I run "agents --version"
    Then the exit code is 0
    And the output contains "0."

  Scenario: An error for a program
    When I run "agents plan status no-such-plan --json"
    Then the exit code is 3
    And the JSON field "status" is "error"
    And the JSON field "exit_code" is 3
    And the JSON has a field "data.error.hint"
