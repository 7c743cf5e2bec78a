Feature: Going back, all resources together
  Whatever happened after a checkpoint is taken back as a whole: files, database, steps, decisions.
  What cannot be taken back is refused with an error of its own, and nothing changes.

  Background:
    Given a git repository "app" and a database "shop.db"

  # On failure

  Scenario: A step that fails is taken back, the steps before it stay
    Given the plan "shop" with the steps
      """
      - {id: greet, on: app, run: "echo again >> greeting.txt"}
      - {id: hire, tool: sql, on: db, with: {script: "INSERT INTO users VALUES ('Mary')"}}
      - {id: sell, on: app, run: 'rm old.txt; mkdir -p a/b; python3 "$AGENTS_PLAN_DIR/sell.py"; exit 3'}
      """
    And I remember everything
    When the plan runs and fails
    Then the plan is "execute/errored"
    And the JSON field "data.error.type" is "ToolFailed"
    And the sandbox has "greeting.txt" with "hello again"
    And the sandbox has "old.txt" with "old"
    And the sandbox has no "a"
    And the users in the sandbox are "Ada, Grace, Mary"
    And the step "hire" is "complete" after 1 attempt
    And the step "sell" is "errored" after 1 attempt
    And its checkpoint groups are
      | type               | step | rows    |
      | pre_execute        | -1   | app, db |
      | on_decision        | 0    | app     |
      | after_tool_execute | 0    | app     |
      | on_decision        | 1    | db      |
      | after_tool_execute | 1    | db      |
      | on_decision        | 2    | app     |
      | on_error           | 2    | app, db |
    And my own files have not changed
    And "agents plan status shop --json" exits with 0

  Scenario: The failed state is kept for inspection
    Given the plan "shop" with the steps
      """
      - {id: sell, on: app, run: 'python3 "$AGENTS_PLAN_DIR/sell.py"; echo broken; exit 3'}
      """
    And the plan ran and failed
    When I run "agents plan errors shop --json"
    Then the exit code is 0
    And the JSON field "data.step" is "sell"
    And the JSON field "data.exit_code" is 3
    And the JSON field "data.output" is "broken\n"
    When I roll back to the failed state of "sell"
    Then the sandbox has "greeting.txt" with "hello sold"
    And the users in the sandbox are "Ada, Grace, Sold"

  Scenario: The policy takes the whole plan back
    Given the policy {on_failure: rollback_plan}
    And the plan "shop" with the steps
      """
      - {id: greet, on: app, run: "echo again >> greeting.txt"}
      - {id: sell, on: app, run: 'python3 "$AGENTS_PLAN_DIR/sell.py"; exit 3'}
      """
    When the plan runs and fails
    Then the plan is "execute/errored"
    And the sandbox has "greeting.txt" with "hello"
    And the users in the sandbox are "Ada, Grace"
    And the step "greet" is "queued" after 1 attempt
    And the superseded decisions are "greet, sell"

  Scenario: The policy leaves everything as it fell
    Given the policy {on_failure: stop}
    And the plan "shop" with the steps
      """
      - {id: greet, on: app, run: "echo again >> greeting.txt"}
      - {id: sell, on: app, run: 'python3 "$AGENTS_PLAN_DIR/sell.py"; exit 3'}
      """
    When the plan runs and fails
    Then the plan is "execute/errored"
    And the sandbox has "greeting.txt" with "hello again sold"
    And the users in the sandbox are "Ada, Grace, Sold"
    And the step "greet" is "complete" after 1 attempt

  Scenario: A step may have a policy of its own
    Given the policy {on_failure: rollback_plan}
    And the plan "shop" with the steps
      """
      - {id: greet, on: app, run: "echo again >> greeting.txt"}
      - {id: fail, on: app, run: "echo half > half.txt; exit 3", on_failure: stop}
      """
    When the plan runs and fails
    Then the sandbox has "half.txt" with "half"

  # By hand

  Scenario: Back to each of several checkpoints, and forward again
    Given the plan "shop" with the steps
      """
      - {id: greet, on: app, run: "echo again >> greeting.txt"}
      - {id: hire, tool: sql, on: db, with: {script: "INSERT INTO users VALUES ('Mary')"}}
      - {id: sell, on: app, run: 'rm old.txt; python3 "$AGENTS_PLAN_DIR/sell.py"'}
      """
    And the plan ran
    When I roll back to the decision of "sell"
    Then these changes were reverted
      | resource | file         | action    |
      | app      | greeting.txt | restored  |
      | app      | old.txt      | recreated |
      | db       | shop.db      | restored  |
    And the sandbox has "greeting.txt" with "hello again"
    And the users in the sandbox are "Ada, Grace, Mary"
    And the decisions in force are "greet, hire, sell"
    When I roll back to the decision of "hire"
    Then these changes were reverted
      | resource | file    | action   |
      | db       | shop.db | restored |
    And the users in the sandbox are "Ada, Grace"
    And the superseded decisions are "sell"
    When I roll back to "first"
    Then the sandbox has "greeting.txt" with "hello"
    And no decision is in force
    When I roll back to the group after "sell"
    Then these changes were reverted
      | resource | file         | action   |
      | app      | greeting.txt | restored |
      | app      | old.txt      | removed  |
      | db       | shop.db      | restored |
    And the sandbox has "greeting.txt" with "hello again sold"
    And the users in the sandbox are "Ada, Grace, Mary, Sold"
    And the decisions in force are "greet, hire, sell"
    And the step "sell" is "complete" after 1 attempt

  Scenario: After a rollback the plan goes on from there
    Given the plan "shop" with the steps
      """
      - {id: greet, on: app, run: "echo again >> greeting.txt"}
      - {id: hire, tool: sql, on: db, with: {script: "INSERT INTO users VALUES ('Mary')"}}
      - {id: sell, on: app, run: 'python3 "$AGENTS_PLAN_DIR/sell.py"'}
      """
    And the plan ran
    When I roll back to the group after "greet"
    Then the plan is "execute/queued"
    And it reports that 2 decisions and 2 tool calls came after
    And the step "greet" is "complete" after 1 attempt
    And the step "hire" is "queued" after 1 attempt
    When I resume it
    Then the exit code is 0
    And it says that "resumed from checkpoint"
    And the plan is "execute/complete"
    And the step "greet" is "complete" after 1 attempt
    And the step "hire" is "complete" after 2 attempts
    And the sandbox has "greeting.txt" with "hello again sold"
    And the users in the sandbox are "Ada, Grace, Mary, Sold"
    And the decisions in force are "greet, hire, sell"
    When I apply it
    Then the file "app/greeting.txt" contains "sold"
    And the users in my database are "Ada, Grace, Mary, Sold"
    And my repository has the commit of the plan

  Scenario: A dry run says exactly what would happen and does nothing
    Given the plan "shop" with the steps
      """
      - {id: sell, on: app, run: 'rm old.txt; mkdir new; python3 "$AGENTS_PLAN_DIR/sell.py"'}
      - {id: greet, on: app, run: "echo again >> greeting.txt"}
      """
    And the plan ran
    And I remember everything
    When I ask what rolling back to "first" would do
    Then these changes would be reverted
      | resource | file         | action    |
      | app      | greeting.txt | restored  |
      | app      | new          | removed   |
      | app      | old.txt      | recreated |
      | db       | shop.db      | restored  |
    And nothing has changed
    When I roll back to "first"
    Then what was foreseen is what was done

  Scenario: Nobody is there to say yes
    Given the plan "shop" with the steps
      """
      - {id: greet, on: app, run: "echo again >> greeting.txt"}
      """
    And the plan ran
    And I remember everything
    When I do not say yes to rolling back to "first"
    Then the error is "Declined" with exit code 4
    And the hint says "--yes"
    And nothing has changed

  Scenario: Edits by hand are kept before they are taken back, and undo brings them again
    Given the plan "shop" with the steps
      """
      - {id: greet, on: app, run: "echo again >> greeting.txt"}
      """
    And the plan ran
    And I write "mine" into "mine.txt" of the sandbox "app"
    And I add a "Mary" to the database of the sandbox
    When I roll back to the decision of "greet"
    Then these changes were reverted
      | resource | file         | action   |
      | app      | greeting.txt | restored |
      | app      | mine.txt     | removed  |
      | db       | shop.db      | restored |
    And its checkpoint groups are
      | type               | rows    |
      | pre_execute        | app, db |
      | on_decision        | app     |
      | after_tool_execute | app     |
      | pre_rollback       | app, db |
    When I undo it
    Then the exit code is 0
    And the JSON field "data.undone" is "rollback"
    And the sandbox has "mine.txt" with "mine"
    And the sandbox has "greeting.txt" with "hello again"
    And the users in the sandbox are "Ada, Grace, Mary"
    When I redo it
    Then the exit code is 0
    And the sandbox has no "mine.txt"
    And the users in the sandbox are "Ada, Grace"

  Scenario: Undo takes back the whole run, redo does it again, a new operation ends redo
    Given the plan "shop" with the steps
      """
      - {id: greet, on: app, run: "echo again >> greeting.txt"}
      - {id: sell, on: app, run: 'python3 "$AGENTS_PLAN_DIR/sell.py"'}
      """
    And the plan ran
    When I undo it
    Then the JSON field "data.undone" is "execute"
    And the sandbox has "greeting.txt" with "hello"
    And the users in the sandbox are "Ada, Grace"
    And the plan is "execute/queued"
    When I undo it
    Then the error is "NothingToUndo" with exit code 4
    When I redo it
    Then the JSON field "data.redone" is "execute"
    And the sandbox has "greeting.txt" with "hello again sold"
    And the users in the sandbox are "Ada, Grace, Sold"
    And the plan is "execute/complete"
    And the decisions in force are "greet, sell"
    When I roll back to the decision of "sell"
    And I redo it
    Then the error is "NothingToUndo" with exit code 4

  # Guards

  Scenario Outline: Refused: <why>
    Given the plan "shop" with the steps
      """
      - {id: greet, on: app, run: "echo again > greeting.txt"}
      - {id: hire, tool: sql, on: db, with: {script: "INSERT INTO users VALUES ('Mary')"}}
      """
    And the plan ran
    And <guard>
    And I remember everything
    When I try to roll back to <target>
    Then the error is "<error>" with exit code <code>
    And the hint says "<hint>"
    And nothing has changed

    Examples:
      | why                             | guard                                                             | target                         | error             | code | hint                |
      | the plan is applied             | the plan was applied                                              | "first"                        | PlanApplied       | 4    | agents plan revert-applied |
      | the plan is cancelled           | the plan was cancelled                                            | "first"                        | PlanCancelled     | 4    | agents plan diff    |
      | the sandbox is missing          | its sandbox was removed from the disk                             | "first"                        | SandboxMissing    | 5    | agents plan delete  |
      | the sandbox is not ours         | its sandbox was replaced by another directory with the same files | "first"                        | SandboxNotOurs    | 5    | move it away        |
      | the checkpoint is another's     | another plan ran                                                  | a checkpoint of the other plan | ForeignCheckpoint | 4    | agents plan rollback |
      | there is no such checkpoint     | another plan ran                                                  | "no-such-label"                | NotFound          | 3    | agents plan checkpoints |
      | the old text of a file is damaged | the stored content "hello" was damaged on the disk            | "first"                        | ContentDamaged    | 6    | agents check        |
      | the old database is damaged     | the stored content "Grace" was damaged on the disk                | "first"                        | ContentDamaged    | 6    | agents check        |

  Scenario: Refused: the checkpoint was pruned
    Given the policy {max_checkpoints_per_plan: 4}
    And the plan "shop" with the steps
      """
      - {id: one, on: app, run: "echo 1 > file.txt"}
      - {id: two, on: app, run: "echo 2 > file.txt"}
      - {id: three, on: app, run: "echo 3 > file.txt"}
      """
    And the plan ran
    And I remember everything
    When I try to roll back to the oldest pruned group
    Then the error is "CheckpointPruned" with exit code 4
    And the hint names the nearest group that is kept
    And nothing has changed

  Scenario: Refused: a live process is executing the plan
    Given the plan "shop" with the steps
      """
      - {id: greet, on: app, run: "echo again >> greeting.txt"}
      - {id: wait, on: app, run: 'touch waiting; while [ ! -e "$AGENTS_PLAN_DIR/go" ]; do sleep 0.02; done'}
      """
    And the plan is running
    And I remember everything
    When I try to roll back to "first"
    Then the error is "PlanBusy" with exit code 4
    And the hint says "kill"
    And nothing has changed
    And the running plan ends well when it is let go on
    And the plan is "execute/complete"
