Feature: One decision is corrected, and what does not hang on it stays
  The corrected branch goes back and runs again with the guidance; its siblings are not touched.

  Background:
    Given a git repository "app" and a database "shop.db"
    And the plan "shop" with the steps
      """
      - {id: greet, on: app, run: "echo again >> greeting.txt"}
      - {id: note, on: app, run: 'echo "note: $AGENTS_GUIDANCE" > note.txt'}
      - {id: index, on: app, run: "cp note.txt index.txt", needs: [note]}
      - {id: hire, tool: sql, on: db, with: {script: "INSERT INTO users VALUES ('Mary')"}}
      """
    And the plan ran

  Scenario: The siblings stay, what needs it goes with it
    When I correct "note" with the guidance "be brief"
    Then the sandbox has "note.txt" with "note: be brief"
    And the sandbox has "index.txt" with "note: be brief"
    And the sandbox has "greeting.txt" with "hello again"
    And the users in the sandbox are "Ada, Grace, Mary"
    And the step "note" is "complete" after 2 attempts
    And the step "index" is "complete" after 2 attempts
    And the step "greet" is "complete" after 1 attempt
    And the step "hire" is "complete" after 1 attempt
    And the superseded decisions are "note, index"
    And the JSON field "data.attempt" is 2

  Scenario: It can be undone and done again
    When I correct "note" with the guidance "be brief"
    And I undo it
    Then the sandbox has "note.txt" with "note:"
    And the decisions in force are "greet, note, index, hire"
    When I redo it
    Then the sandbox has "note.txt" with "note: be brief"

  Scenario: A dry run changes nothing
    Given I remember everything
    When I ask what correcting "note" would do
    Then nothing has changed
    And it would run "note, index" again and keep 3 decisions

  Scenario: The old attempt is shown against the new one
    When I correct "note" with the guidance "be brief"
    And I run "agents plan diff shop --correction last --json"
    Then the JSON field "data.files_changed" is 2
    And the output contains "+note: be brief"

  Scenario: Work is added, and everything is kept
    Given a file "more.yaml" with
      """
      name: more
      steps:
        - {id: more, on: app, run: "echo more > more.txt"}
      """
    When I append "more.yaml" to "note" with the guidance "one more thing"
    Then the sandbox of the plan has "more.txt" with "more"
    And the sandbox of the plan has "note.txt" with "note:"
    And the step "note" is "complete" after 1 attempt
    And the child plan of "append-2" is "complete"

  Scenario: A plan that is applied is not corrected
    Given the plan was applied
    And I remember everything
    When I try to correct "note"
    Then the error is "PlanApplied" with exit code 4
    And nothing has changed
