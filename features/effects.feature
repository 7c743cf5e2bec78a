Feature: What leaves the sandboxes
  Files go back by themselves; what a tool did elsewhere is compensated, or it is said plainly that
  it cannot be undone, before anything is taken back.

  Background:
    Given a git repository "app" and a database "shop.db"
    And tools that book and mail in the world outside

  Scenario: Every call that may leave the sandbox is in the ledger
    Given the plan "trip" with these tools and the steps
      """
      - {id: flight, tool: book, on: app, with: {args: [flight]}}
      - {id: tell, tool: mail, on: app, with: {args: [Ada]}}
      - {id: look, on: app, run: "true"}
      - {id: note, tool: file.write, on: app, with: {path: note.txt, content: x}}
      """
    When the plan runs
    Then its effects are
      | step   | class        | state    |
      | flight | compensable  | happened |
      | tell   | irreversible | happened |
      | look   | unknown      | happened |

  Scenario: A rollback compensates, the last first
    Given the plan "trip" with these tools and the steps
      """
      - {id: flight, tool: book, on: app, with: {args: [flight]}}
      - {id: hotel, tool: book, on: app, with: {args: [hotel]}}
      """
    And the plan ran
    When I try to go back to the beginning
    Then the exit code is 0
    And the world has seen "booked flight, booked hotel, cancelled hotel, cancelled flight"
    And its effects are
      | step   | class       | state       |
      | flight | compensable | compensated |
      | hotel  | compensable | compensated |

  Scenario: What cannot be undone has to be accepted
    Given the plan "trip" with these tools and the steps
      """
      - {id: greet, on: app, run: "echo again >> greeting.txt"}
      - {id: tell, tool: mail, on: app, with: {args: [Ada]}}
      """
    And the plan ran
    When I try to go back to the beginning
    Then the exit code is 4
    And the JSON field "data.error.type" is "LossNotAccepted"
    And the sandbox has "greeting.txt" with "hello again"
    When I go back to the beginning and accept the loss
    Then the sandbox has "greeting.txt" with "hello"
    And its effects are
      | step  | class        | state    |
      | greet | unknown      | accepted |
      | tell  | irreversible | accepted |

  Scenario: A compensation that fails is loud, and can be tried again
    Given the plan "trip" with these tools and the steps
      """
      - {id: flight, tool: book, on: app, with: {args: [flight]}}
      """
    And the plan ran
    And cancelling is broken
    When I try to go back to the beginning
    Then the exit code is 5
    And the JSON field "data.error.type" is "CompensationFailed"
    And the JSON field "data.post_rollback_state.state" is "queued"
    Given cancelling works again
    When I try the compensations once more
    Then the world has seen "booked flight, cancelled flight"

  Scenario: A step whose effect may have happened is not repeated without being asked
    Given the plan "trip" with these tools and the steps
      """
      - {id: tell, tool: mail, on: app, with: {args: [Ada]}}
      """
    And the mail server is down
    And the plan ran and failed
    And the mail server is up again
    When I resume it
    Then the exit code is 4
    And the JSON field "data.error.type" is "MayHaveHappened"
    And the world has seen "mailed Ada"
    When I resume it and repeat "tell"
    Then the world has seen "mailed Ada, mailed Ada"
    And the plan is "execute/complete"

  Scenario: One file goes back and the plan stays
    Given the plan "trip" with these tools and the steps
      """
      - {id: greet, on: app, run: "echo again >> greeting.txt; rm old.txt"}
      """
    And the plan ran
    When I run "agents plan rollback trip first --only app:old.txt --yes --json"
    Then the exit code is 0
    And the sandbox has "old.txt" with "old"
    And the sandbox has "greeting.txt" with "hello again"
    And the plan is "execute/complete"
