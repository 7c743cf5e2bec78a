Feature: What makes a checkpoint group without being asked
  Each trigger by itself: the groups that are always made, and those of this one event.

  Background:
    Given a git repository "app" and a database "shop.db"

  Scenario Outline: <trigger> by itself
    Given the policy {auto_create_on: [<trigger>]}
    And the plan "shop" with the steps
      """
      - {id: look, tool: file.read, on: app, with: {path: greeting.txt}}
      - {id: greet, on: app, run: "echo again >> greeting.txt"}
      """
    When the plan runs
    Then the groups by trigger are "<groups>"
    When I roll back to "last"
    Then the sandbox has "greeting.txt" with "hello again"

    Examples:
      | trigger                | groups                                                          |
      | before_step            | pre_execute -1, before_step 0, before_step 1, post_execute 1    |
      | after_step             | pre_execute -1, after_step 0, after_step 1                      |
      | before_tool_execute    | pre_execute -1, before_tool_execute 1, post_execute 1           |
      | on_tool_write          | pre_execute -1, before_tool_execute 1, post_execute 1           |
      | after_tool_execute     | pre_execute -1, after_tool_execute 1                            |
      | on_tool_write_complete | pre_execute -1, after_tool_execute 1                            |
      | on_decision            | pre_execute -1, on_decision 0, on_decision 1, post_execute 1    |
      | on_error               | pre_execute -1, post_execute 1                                  |

  Scenario: A child plan is created, and merged
    Given the policy {auto_create_on: [on_subplan_spawn, after_subplan]}
    And the plan "shop" with the steps
      """
      - {id: kid, subplan: {steps: [{id: k, on: app, run: "echo kid > kid.txt"}]}}
      """
    When the plan runs
    Then the groups by trigger are "pre_execute -1, on_subplan_spawn 0, after_subplan 0"
    When I roll back to the group "on_subplan_spawn"
    Then the sandbox of the plan has no "kid.txt"
    And the child plan of "kid" is "queued"

  Scenario: A step fails
    Given the policy {auto_create_on: [on_error]}
    And the plan "shop" with the steps
      """
      - {id: greet, on: app, run: "echo again >> greeting.txt; exit 3"}
      """
    When the plan runs and fails
    Then the groups by trigger are "pre_execute -1, on_error 0"
    And the sandbox has "greeting.txt" with "hello"
    When I roll back to the group "on_error"
    Then the sandbox has "greeting.txt" with "hello again"

  Scenario: The order within one step
    Given the policy {auto_create_on: "on_decision, before_step, before_tool_execute, after_tool_execute, after_step"}
    And the plan "shop" with the steps
      """
      - {id: greet, on: app, run: "echo again >> greeting.txt"}
      """
    When the plan runs
    Then its checkpoint groups are
      | type               | step | found by                                      |
      | pre_execute        | -1   | pre_execute                                   |
      | on_decision        | 0    | on_decision, before_step, before_tool_execute |
      | after_tool_execute | 0    | after_tool_execute, after_step, post_execute  |

  Scenario: None
    Given the policy {auto_create_on: []}
    And the plan "shop" with the steps
      """
      - {id: greet, on: app, run: "echo again >> greeting.txt"}
      """
    When the plan runs
    Then the groups by trigger are "pre_execute -1, post_execute 0"

  Scenario: One that does not exist
    Given the policy {auto_create_on: [on_tool_writes]}
    And the plan "shop" with the steps
      """
      - {id: greet, on: app, run: "echo again >> greeting.txt"}
      """
    When I try to run the plan
    Then the error is "PlanFileError" with exit code 2
    And the error says
      """
      unknown trigger 'on_tool_writes'
      did you mean 'on_tool_write'?
      """
    And nothing was created
