Feature: From nothing to a plan that runs

  Background:
    Given a file "app/README.md" with
      """
      hello
      """
    And a git repository "app" with all files committed

  Scenario: A plan file of commands
    When in "app" I run "agents plan new --from-commands 'echo one > one.txt' 'cat one.txt' -o first.yaml"
    Then the exit code is 0
    And the file "app/first.yaml" contains "- id: echo"
    And "agents plan lint app/first.yaml" exits with 0
    And "agents plan run app/first.yaml" exits with 0

  Scenario: A plan file with mistakes
    Given a file "bad.yaml" with
      """
      name: bad
      resources: {app: {kind: git-checkout, path: app}}
      steps:
        - {id: a, tool: shel, with: {command: ls}}
        - {id: b, run: ls, neds: a}
      """
    When I run "agents plan lint bad.yaml"
    Then the exit code is 2
    And the output contains "bad.yaml:4:tool: step 'a': unknown tool 'shel', did you mean 'shell'?"
    And the output contains "bad.yaml:5:neds: unknown key 'neds' in step 'b', did you mean 'needs'?"

  Scenario: Files to begin with
    When I run "agents init"
    Then the exit code is 0
    And the output contains "next: agents plan run plan.yaml"
    And "agents plan run plan.yaml" exits with 0

  Scenario: The schema of what a command prints
    When I run "agents schema plan status --json"
    Then the exit code is 0
    And the JSON field "data.name" is "plan status"
    And the JSON field "data.schema.title" is "agents plan status --json"

  Scenario: A person works in a sandbox, and looks at what was there before
    When in "app" I run "agents plan new --from-commands 'echo one > one.txt' -o first.yaml"
    Then "agents plan run app/first.yaml" exits with 0
    And "agents plan shell first" exits with 0
    When I run "agents plan open first first look"
    Then the exit code is 0
    And the file "look/work/README.md" contains "hello"
    And there is no file "look/work/one.txt"
