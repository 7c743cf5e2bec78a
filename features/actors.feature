Feature: Somebody else decides
  An actor proposes decisions and steps while the plan runs. It never acts itself: what it asks for
  runs in the sandboxes, with checkpoints, and its own memory goes back with the files.

  Background:
    Given a git repository "app" and a database "shop.db"

  Scenario: What the actor decides is recorded, run and applied
    Given the plan "shop" with the actor
      """
      def act(start):
          yield {"type": "decision", "question": "how to greet", "chosen": "twice"}
          yield {"type": "step", "on": "app", "run": "echo again >> greeting.txt"}
          yield {"type": "decision", "question": "whom to hire", "chosen": "Mary"}
          yield {"type": "step", "tool": "sql", "on": "db",
                 "with": {"script": "INSERT INTO users VALUES ('Mary')"}}
      """
    And I remember everything
    When the plan runs
    Then the plan is "execute/complete"
    And the decisions in force are "how to greet, whom to hire"
    And the sandbox has "greeting.txt" with "hello again"
    And the users in the sandbox are "Ada, Grace, Mary"
    And my own files have not changed
    And its checkpoint groups are
      | type                | step | rows    |
      | pre_execute         | -1   | app, db |
      | on_decision         | -1   | app     |
      | before_tool_execute | 0    | app     |
      | after_tool_execute  | 0    | app     |
      | on_decision         | 0    | app     |
      | before_tool_execute | 1    | db      |
      | after_tool_execute  | 1    | db      |
    When I apply it
    Then the users in my database are "Ada, Grace, Mary"

  Scenario: After a rollback the actor remembers what it knew then
    Given the plan "shop" with the actor
      """
      def act(start):
          rounds = start["state"] or 0
          while rounds < 3:
              rounds += 1
              yield {"type": "state", "state": rounds}
              yield {"type": "step", "on": "app", "run": f"echo {rounds} >> rounds",
                     "checkpoint": f"round-{rounds}"}
      """
    And the plan ran
    And the actor's state is 3
    When I roll back to "round-1"
    Then the actor's state is 1
    And the sandbox has "rounds" with "1"
    When I resume it
    Then the actor's state is 3
    And the sandbox has "rounds" with "1 2 3"
    And the steps done are "s1, s4, s5"

  Scenario: The actor sees a failure and does something else
    Given the plan "shop" with the actor
      """
      def act(start):
          bad = yield {"type": "step", "on": "app", "run": "rm old.txt; exit 3"}
          yield {"type": "step", "on": "app", "run": f"echo '{bad['error']}' > seen"}
      """
    When the plan runs
    Then the plan is "execute/complete"
    And the sandbox has "old.txt" with "old"
    And the sandbox has "seen" with "exit code 3"
    And the steps done are "s2"

  Scenario: The actor begins anew with what it has learned
    Given the plan "shop" with the actor
      """
      def act(start):
          if not start["guidance"]:
              yield {"type": "step", "on": "app", "run": "rm old.txt"}
              yield {"type": "revert", "reason": "old.txt is needed"}
          yield {"type": "step", "on": "app", "run": f"echo {start['guidance'][0]} > why"}
      """
    When the plan runs
    Then the plan is "execute/complete"
    And the sandbox has "old.txt" with "old"
    And the sandbox has "why" with "old.txt is needed"
    And the decisions in force are "begin anew, s2"
    And the superseded decisions are "s1"

  Scenario: An actor that fails leaves a plan to go on with
    Given the plan "shop" with the actor
      """
      def act(start):
          if not start["done"]:
              yield {"type": "step", "on": "app", "run": "touch new"}
              yield {"type": "step", "tool": "file.wrte"}
      """
    When the plan runs and fails
    Then the error is "ActorFailed" with exit code 5
    And the error says
      """
      the actor, line 2: no tool named 'file.wrte', did you mean 'file.write'?
      """
    When I resume it
    Then the plan is "execute/complete"
    And the steps done are "s1"
