Feature: A step can be a plan of its own
  A child plan works in a copy of its parent's sandboxes; what it made is merged back as a whole.

  Background:
    Given a git repository "app" and a database "shop.db"

  Scenario: Side by side, merged in the order of their steps
    Given the plan "shop" with the steps
      """
      - {id: ann, subplan: {group: g, steps: [{id: a, on: app, run: "echo ann > ann.txt"}]}}
      - {id: bob, subplan: {group: g, steps: [{id: b, on: app, run: "echo bob > bob.txt"}]}}
      - {id: end, on: app, run: "cat ann.txt bob.txt > both.txt"}
      """
    When the plan runs
    Then the sandbox of the plan has "both.txt" with "ann bob"
    And the child plan of "ann" is "complete"
    And the child plan of "bob" is "complete"

  Scenario: A conflict is data, nothing is merged, and a person settles it
    Given the plan "shop" with the steps
      """
      - {id: ann, subplan: {group: g, steps: [{id: a, on: app, run: "echo ann > who.txt; echo 1 > ann.txt"}]}}
      - {id: bob, subplan: {group: g, steps: [{id: b, on: app, run: "echo bob > who.txt"}]}}
      """
    When the plan runs and fails
    Then the JSON field "data.error.type" is "MergeConflict"
    And the JSON field "data.error.conflicts.0.path" is "who.txt"
    And the JSON has a field "data.error.conflicts.0.ours"
    And the JSON has a field "data.error.conflicts.0.theirs"
    And the sandbox of the plan has no "ann.txt"
    When I write "ann" into "who.txt" of the sandbox of the child plan of "bob"
    And I resume it
    Then the plan is "execute/complete"
    And the sandbox of the plan has "who.txt" with "ann"
    And the sandbox of the plan has "ann.txt" with "1"

  Scenario: Rolling back the parent takes its children along
    Given the plan "shop" with the steps
      """
      - {id: ann, subplan: {steps: [{id: a, on: app, run: "echo ann > ann.txt"}]}}
      """
    And the plan ran
    When I roll back to "first"
    Then the sandbox of the plan has no "ann.txt"
    And the child plan of "ann" is "cancelled"
    When I undo it
    Then the sandbox of the plan has "ann.txt" with "ann"
    And the child plan of "ann" is "complete"

  Scenario: Two children of a group cannot write one database
    Given the plan "shop" with the steps
      """
      - id: ann
        subplan: {group: g, steps: [{id: a, tool: sql, on: db, with: {script: "DELETE FROM users"}}]}
      - id: bob
        subplan: {group: g, steps: [{id: b, tool: sql, on: db, with: {script: "DELETE FROM users"}}]}
      """
    When I try to run the plan
    Then the error is "PlanFileError" with exit code 2
    And the error says
      """
      the database 'db' is written by several child plans
      """
    And nothing was created
