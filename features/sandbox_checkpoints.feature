Feature: Checkpoints of all sandboxes, taken together at every decision
  A plan works on private copies of a git repository and of a database beside it.
  At every decision one group holds the state of both, and the plan's own view of itself.

  Background:
    Given a git repository "app" and a database "shop.db"

  Scenario: A group at every decision, one row for each resource that was modified
    Given the plan "shop" with the steps
      """
      - {id: greet, on: app, run: "echo again >> greeting.txt"}
      - {id: hire, tool: sql, on: db, with: {script: "INSERT INTO users VALUES ('Mary')"}}
      - {id: sell, on: app, run: 'python3 "$AGENTS_PLAN_DIR/sell.py"'}
      """
    When the plan runs
    Then its checkpoint groups are
      | type               | step | found by                         | rows    |
      | pre_execute        | -1   | pre_execute                      | app, db |
      | on_decision        | 0    | on_decision, before_tool_execute | app     |
      | after_tool_execute | 0    | after_tool_execute               | app     |
      | on_decision        | 1    | on_decision, before_tool_execute | db      |
      | after_tool_execute | 1    | after_tool_execute               | db      |
      | on_decision        | 2    | on_decision, before_tool_execute | app     |
      | after_tool_execute | 2    | after_tool_execute, post_execute | app, db |
    And every group names a state of both resources
    And the group of the decision of "greet" adds nothing and has the state before it
    And the group of the decision of "hire" adds nothing and has the state before it
    And groups that hold something new say how much they added
    And the newest checkpoint of the plan is the one its status names

  Scenario: A step that changes nothing adds no content
    Given the plan "shop" with the steps
      """
      - {id: look, tool: file.read, on: app, with: {path: greeting.txt}}
      - {id: idle, on: db, run: "true"}
      """
    When the plan runs
    Then its checkpoint groups are
      | type               | step | found by                         | rows    |
      | pre_execute        | -1   | pre_execute                      | app, db |
      | on_decision        | 0    | on_decision                      | app     |
      | on_decision        | 1    | on_decision, before_tool_execute | db      |
      | after_tool_execute | 1    | after_tool_execute, post_execute | db      |
    And the group of the decision of "look" adds nothing and has the state before it
    And the group of the decision of "idle" adds nothing and has the state before it

  Scenario: Steps that share a decision share its group
    Given the plan "shop" with the steps
      """
      - {id: first, on: app, run: "echo 1 > one.txt", decision: {question: how, chosen: simply}}
      - {id: second, on: app, run: "echo 2 > two.txt", decision: first}
      """
    When the plan runs
    Then its checkpoint groups are
      | type               | step | found by                                |
      | pre_execute        | -1   | pre_execute                             |
      | on_decision        | 0    | on_decision, before_tool_execute        |
      | after_tool_execute | 0    | after_tool_execute, before_tool_execute |
      | after_tool_execute | 1    | after_tool_execute, post_execute        |
    And the decisions in force are "how"

  Scenario: What a row records
    Given the plan "shop" with the steps
      """
      - id: greet
        on: app
        run: "echo again >> greeting.txt"
        decision: {question: how to greet, chosen: twice}
      - {id: hire, tool: sql, on: db, with: {script: "INSERT INTO users VALUES ('Mary')"}}
      """
    When the plan runs
    Then every row of checkpoints is complete
    And the row after "greet" of "app" says
      | field       | value              |
      | type        | after_tool_execute |
      | index       | 0                  |
      | decision    | how to greet       |
      | reason      | after_tool_execute |
      | source_tool | shell              |
      | phase       | execute            |
      | step        | greet              |
      | base_commit | HEAD               |
    And the row after "hire" of "db" says
      | field       | value |
      | index       | 1     |
      | decision    | hire  |
      | source_tool | sql   |
    And the table refuses a checkpoint of type "sometimes"

  Scenario: Milestones of the plan, and checkpoints made by hand, have labels
    Given the plan "shop" with the steps
      """
      - {id: greet, on: app, run: "echo again >> greeting.txt", checkpoint: greeted}
      - {id: tidy, on: app, run: "rm old.txt"}
      """
    And the plan ran
    When I run "agents plan checkpoint create shop --label tidied"
    Then the exit code is 0
    And its checkpoint groups are
      | type               | label   |
      | pre_execute        |         |
      | on_decision        |         |
      | after_tool_execute |         |
      | milestone          | greeted |
      | on_decision        |         |
      | after_tool_execute |         |
      | manual             | tidied  |
    And "greeted" is among the labels that "plan checkpoints" shows
    When I roll back to "greeted"
    Then the sandbox has "old.txt" with "old"
    And the sandbox has "greeting.txt" with "hello again"
    When I roll back to "tidied"
    Then the sandbox has no "old.txt"

  Scenario: The policy limits how many groups a plan keeps, decisions longest
    Given the policy {max_checkpoints_per_plan: 5}
    And the plan "shop" with the steps
      """
      - {id: one, on: app, run: "echo 1 > file.txt"}
      - {id: two, on: app, run: "echo 2 > file.txt"}
      - {id: three, on: app, run: "echo 3 > file.txt"}
      - {id: four, on: app, run: "echo 4 > file.txt"}
      """
    When the plan runs
    Then its checkpoint groups are
      | type               | step |
      | pre_execute        | -1   |
      | on_decision        | 1    |
      | on_decision        | 2    |
      | on_decision        | 3    |
      | after_tool_execute | 3    |
    When I roll back to the decision of "three"
    Then the sandbox has "file.txt" with "2"
    And the users in the sandbox are "Ada, Grace"

  Scenario: The setting limits it too, and labelled groups stay
    When I run "agents config set sandbox.checkpoint.max-checkpoints-per-plan 4"
    Given the plan "shop" with the steps
      """
      - {id: one, on: app, run: "echo 1 > file.txt", checkpoint: precious}
      - {id: two, on: app, run: "echo 2 > file.txt"}
      - {id: three, on: app, run: "echo 3 > file.txt"}
      """
    When the plan runs
    Then its checkpoint groups are
      | type               | step | label    |
      | pre_execute        | -1   |          |
      | milestone          | 0    | precious |
      | on_decision        | 2    |          |
      | after_tool_execute | 2    |          |

  Scenario: Manual pruning says first what it would drop
    Given the plan "shop" with the steps
      """
      - {id: one, on: app, run: "echo 1 > file.txt"}
      - {id: two, on: app, run: "echo 2 > file.txt"}
      """
    And the plan ran
    When I run "agents config set max_checkpoints_per_plan 3"
    Then a dry run says what pruning would drop, and why
    When I prune it
    Then exactly these are gone

  Scenario Outline: Automatic groups can be chosen, in <where>
    Given the policy <policy>
    And the environment has CLEVERAGENTS_CHECKPOINT_AUTO_CREATE_ON="<environment>"
    And the plan "shop" with the steps
      """
      - {id: one, on: app, run: "echo 1 > file.txt"}
      - {id: two, on: app, run: "echo 2 > file.txt"}
      """
    When the plan runs
    Then its checkpoint groups are
      | type         | step | found by      |
      | pre_execute  | -1   | pre_execute   |
      | <first>      | 0    | <found first> |
      | <second>     | 1    | <found then>  |
      | post_execute | 1    | post_execute  |

    Examples:
      | where           | policy                                                    | environment | first               | second              | found first         | found then          |
      | the environment | {}                                                        | on_decision | on_decision         | on_decision         | on_decision         | on_decision         |
      | the policy      | {auto_create_on: [on_decision, before_step]}              | after_step  | on_decision         | on_decision         | on_decision, before_step | on_decision, before_step |

  Scenario: An empty list turns automatic groups off
    Given the policy {auto_create_on: []}
    And the plan "shop" with the steps
      """
      - {id: one, on: app, run: "echo 1 > file.txt"}
      - {id: two, on: app, run: "echo 2 > file.txt"}
      """
    When the plan runs
    Then its checkpoint groups are
      | type         | step | found by     | rows    |
      | pre_execute  | -1   | pre_execute  | app, db |
      | post_execute | 1    | post_execute | app     |
    When I roll back to "first"
    Then the sandbox has no "file.txt"
    And the step "one" is "queued" after 1 attempt

  Scenario: A trigger that does not exist, as a setting
    Given the environment has CLEVERAGENTS_CHECKPOINT_AUTO_CREATE_ON="on_decison"
    And the plan "shop" with the steps
      """
      - {id: one, on: app, run: "echo 1 > file.txt"}
      """
    When I try to run the plan
    Then the error is "ConfigError" with exit code 2
    And the error says
      """
      on_decison
      did you mean 'on_decision'?
      """
    And the hint says "before_tool_execute"

  Scenario: Nothing is kept, and nothing can be undone, without rollback
    Given the policy {rollback_enabled: false}
    And the plan "shop" with the steps
      """
      - {id: greet, on: app, run: "echo again >> greeting.txt"}
      """
    When the plan runs
    Then it has no checkpoint
    And the JSON field "data.last_checkpoint_id" is null
    When I run "agents plan status shop"
    Then the output contains "nothing can be undone"
    When I remember everything
    And I undo it
    Then the error is "RollbackDisabled" with exit code 4
    And nothing has changed
    When I apply it
    Then the file "app/greeting.txt" contains "again"

  Scenario: Edits by hand are adopted when the plan goes on
    Given the plan "shop" with the steps
      """
      - {id: greet, on: app, run: "echo again >> greeting.txt"}
      - {id: tidy, on: app, run: "sh ./tidy.sh"}
      """
    And the plan ran and failed
    When I write "rm old.txt" into "tidy.sh" of the sandbox "app"
    And I add a "Mary" to the database of the sandbox
    And I resume it
    Then the exit code is 0
    And it says that "2 manual edits adopted"
    And its checkpoint groups are
      | type               | step | rows    |
      | pre_execute        | -1   | app, db |
      | on_decision        | 0    | app     |
      | after_tool_execute | 0    | app     |
      | on_decision        | 1    | app     |
      | external_edit      | 0    | app, db |
      | after_tool_execute | 1    | app     |
    And the sandbox has no "old.txt"
    And the users in the sandbox are "Ada, Grace, Mary"
    And the step "greet" is "complete" after 1 attempt
    And the step "tidy" is "complete" after 2 attempts

  Scenario: A tool that says it only reads must not write
    Given a file "look.yaml" with
      """
      name: look
      resources: {app: {kind: git-checkout, path: app}}
      tools: {peek: {run: [sh, -c, "echo peeked > greeting.txt"], read_only: true}}
      steps: [{id: peek, tool: peek}]
      """
    When the plan "look" runs and fails
    Then the JSON field "data.error.type" is "ToolFailed"
    And the sandbox has "greeting.txt" with "hello"

  Scenario Outline: A plan file with <what is wrong> is refused before anything exists
    Given a file "plan.yaml" with
      """
      name: wrong
      resources: {app: {kind: git-checkout, path: <path>}}
      policy: {auto_create_on: [<trigger>]}
      steps:
        - {id: one, <key>: <on>, run: "true", needs: [<needs>]}
        - {id: two, tool: <tool>, on: app, with: {path: greeting.txt}, needs: [one]}
      """
    When I run "agents plan run plan.yaml --json"
    Then the error is "PlanFileError" with exit code 2
    And the error says
      """
      plan.yaml:<line>: <says>
      <nearest>
      """
    And nothing was created

    Examples:
      | what is wrong       | path | trigger      | key | on  | needs | tool      | line | says                                        | nearest                     |
      | an unknown key      | app  | on_decision  | onn | app |       | file.read | 5    | unknown key 'onn' in step 'one'             | did you mean 'on'?          |
      | a missing tool      | app  | on_decision  | on  | app |       | file.raed | 6    | step 'two': unknown tool 'file.raed'        | did you mean 'file.read'?   |
      | a cycle             | app  | on_decision  | on  | app | two   | file.read | 5    | step 'one': 'needs': steps need each other           | one -> two -> one           |
      | an unknown resource | app  | on_decision  | on  | ap  |       | file.read | 5    | step 'one': unknown resource 'ap'           | did you mean 'app'?         |
      | a resource not there | aapp | on_decision | on  | app |       | file.read | 2    | resource 'app': 'path': no such file   | aapp                        |
      | an unknown trigger  | app  | on_decission | on  | app |       | file.read | 3    | the policy: unknown trigger 'on_decission'  | did you mean 'on_decision'? |
